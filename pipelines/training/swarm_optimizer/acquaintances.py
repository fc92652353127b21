"""Whom a peer believes about the swarm's progress: peers that it has averaged with; pure decisions, no network.

Keys are free, so a count of them decides nothing. A peer that has taken part in rounds with this one has shown that it
trains, and if this one misses a round, about all of them have had it. Who only claims is believed for a while, because
everybody was new once; who claims samples round after round and brings none to any of them is not counted any more.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

ROUNDS_REMEMBERED = 8
"""Rounds after which a peer that was in none of them is a stranger again."""

ROUNDS_TO_SHOW_UP = 3
"""Rounds of this peer in which one that claims samples may be missing: it may join late, or lose a round."""


@dataclass
class _Seen:
    since: int
    """Number of rounds that this peer had had when it first saw the other one's record."""

    last: int | None = None
    """Number of the newest round with the other one."""


class Acquaintances:
    """Peers by libp2p id: in which of this peer's rounds they were."""

    def __init__(self) -> None:
        self._num_rounds = 0
        self._seen: dict[str, _Seen] = {}

    def note_round(self, number: int, members: Collection[str]) -> None:
        """Record the newest whole round; calls between rounds (`number` unchanged) have no effect."""
        if number == self._num_rounds:
            return
        self._num_rounds = number
        seen = dict(self._seen)  # replaced, because another thread reads it
        for peer in members:
            seen[peer] = _Seen(since=seen[peer].since if peer in seen else number, last=number)
        self._seen = seen

    def note_claims(self, peers: Collection[str]) -> None:
        """Record who claims to train now; the others are forgotten, unless they were in one of the last rounds."""
        seen = {peer: held for peer, held in self._seen.items() if peer in peers or self._is_recent(held)}
        self._seen = {peer: _Seen(since=self._num_rounds) for peer in peers} | seen

    def know(self, peer: str) -> bool:
        """Return whether a peer was in one of the last rounds."""
        held = self._seen.get(peer)
        return held is not None and self._is_recent(held)

    def count(self, peer: str) -> bool:
        """Return whether a peer's samples count: it is known, or too new to be judged."""
        held = self._seen.get(peer)
        return held is None or self._is_recent(held) or self._num_rounds - held.since < ROUNDS_TO_SHOW_UP

    def _is_recent(self, held: _Seen) -> bool:
        return held.last is not None and self._num_rounds - held.last < ROUNDS_REMEMBERED


def believed_epoch(claims: Mapping[str, int], known: Collection[str]) -> int:
    """Return the latest epoch that at least half of those who can be believed have reached; 0 without others.

    `claims` are the epochs of the other peers' users, each of whom has one voice. Those who are `known` are believed;
    if nobody is, all are: a newcomer knows nobody yet.
    """
    epochs = [epoch for voice, epoch in claims.items() if voice in known] or list(claims.values())
    return sorted(epochs)[len(epochs) // 2] if epochs else 0
