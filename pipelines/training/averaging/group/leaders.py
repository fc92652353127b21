"""Which leaders a peer follows: not those whose groups never began; pure decisions, no network.

Whoever declares itself early leads. A leader that accepts followers and then says nothing costs them a whole search, so
they remember it: the first time briefly, because a machine may have been frozen, then twice as long each time.
"""

from collections.abc import Hashable
from dataclasses import dataclass

FIRST_SECONDS, LONGEST_SECONDS = 5.0, 3600.0
MOST_REMEMBERED = 4096
"""Leaders remembered; of more, those that may be followed again soonest are forgotten."""


@dataclass(frozen=True, kw_only=True)
class _Stall:
    until: float
    seconds: float


class LeaderMemory:
    """Leaders that have stalled, by this peer's own experience. Times are in seconds, of one clock."""

    def __init__(self) -> None:
        self._stalls: dict[Hashable, _Stall] = {}

    def stalled(self, leader: Hashable, now: float) -> float:
        """Record that a leader's group never began; return for how long it is not followed."""
        former = self._stalls.get(leader)
        seconds = min(LONGEST_SECONDS, 2 * former.seconds) if former else FIRST_SECONDS
        self._stalls[leader] = _Stall(until=now + seconds, seconds=seconds)
        if len(self._stalls) > MOST_REMEMBERED:
            del self._stalls[min(self._stalls, key=lambda known: self._stalls[known].until)]
        return seconds

    def led(self, leader: Hashable) -> None:
        """Record that a leader's group has begun: what it did before is forgotten."""
        self._stalls.pop(leader, None)

    def may_be_followed(self, leader: Hashable, now: float) -> bool:
        """Return whether to follow a leader now."""
        stall = self._stalls.get(leader)
        return stall is None or now >= stall.until
