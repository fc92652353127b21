"""Whom a peer avoids by its own experience, and for how long; pure, no network.

The first time briefly, because a machine may have been frozen or a record late, then twice as long each time. Avoided
are leaders that accept followers and never begin, and peers that claim an epoch of which nobody has the state.
"""

from collections.abc import Hashable
from dataclasses import dataclass

MOST_REMEMBERED = 4096
"""Peers remembered; of more, those that are avoided least long from now on are forgotten."""


@dataclass(frozen=True, kw_only=True)
class _Spell:
    until: float
    seconds: float


class Avoidance:
    """Peers that are avoided. Times are in seconds, of one clock."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self._spells: dict[Hashable, _Spell] = {}

    def avoid(self, peer: Hashable, now: float) -> float:
        """Avoid a peer from now on; return for how long."""
        former = self._spells.get(peer)
        seconds = min(self._longest_seconds, 2 * former.seconds) if former else self._first_seconds
        self._spells[peer] = _Spell(until=now + seconds, seconds=seconds)
        if len(self._spells) > MOST_REMEMBERED:
            del self._spells[min(self._spells, key=lambda known: self._spells[known].until)]
        return seconds

    def forgive(self, peer: Hashable) -> None:
        """Forget what a peer did."""
        self._spells.pop(peer, None)

    def avoids(self, peer: Hashable, now: float) -> bool:
        """Return whether a peer is avoided now."""
        spell = self._spells.get(peer)
        return spell is not None and now < spell.until
