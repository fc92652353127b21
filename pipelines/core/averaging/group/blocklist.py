"""Whom a peer avoids by its own experience, and for how long; pure, no network.

The first time briefly, because a machine may have been frozen or a record late, then twice as long each time. Avoided
are leaders that accept followers and never begin, and peers that claim an epoch of which nobody has the state.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

MOST_REMEMBERED = 4096
"""Peers remembered; of more, those that are avoided least long from now on are forgotten."""


@dataclass(frozen=True, kw_only=True)
class BlocklistEntry:
    """For how long a peer is avoided, and until when."""

    until: float
    seconds: float


class Blocklist:
    """Peers that are avoided. Times are in seconds, of one clock."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds, self._longest_seconds = first_seconds, longest_seconds
        self.entries: dict[Hashable, BlocklistEntry] = {}

    def avoid(self, peer: Hashable, now: float, *, at_least: float = 0.0) -> float:
        """Avoid a peer from now on, `at_least` for so many seconds; return for how long."""
        former = self.entries.get(peer)
        usual = 2 * former.seconds if former else self._first_seconds
        seconds = min(self._longest_seconds, max(at_least, usual))
        self.entries[peer] = BlocklistEntry(until=now + seconds, seconds=seconds)
        self._forget_some()
        return seconds

    def forgive(self, peer: Hashable) -> None:
        """Forget what a peer did."""
        self.entries.pop(peer, None)

    def until(self, peer: Hashable) -> float:
        """Return until when a peer is, or was, avoided; 0: never."""
        entry = self.entries.get(peer)
        return 0.0 if entry is None else entry.until

    def avoids(self, peer: Hashable, now: float) -> bool:
        """Return whether a peer is avoided now."""
        return now < self.until(peer)

    def recall(self, entries: Mapping[str, BlocklistEntry]) -> None:
        """Take over what was remembered elsewhere, where it lasts longer than what is known here."""
        self.entries |= {peer: entry for peer, entry in entries.items() if entry.until > self.until(peer)}
        self._forget_some()

    def _forget_some(self) -> None:
        while len(self.entries) > MOST_REMEMBERED:
            del self.entries[min(self.entries, key=self.until)]
