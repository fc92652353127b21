"""Whom a peer believes about the swarm's progress: peers that it has averaged with; pure decisions, no network.

Keys are free, so a count of them decides nothing. A peer that has taken part in rounds with this one has shown that it
trains, and if this one misses a round, about all of them have had it. Who only claims is believed for a while, because
everybody was new once; who claims samples round after round and brings none to any of them is not counted any more.
Keys are new in each epoch if somebody likes it so: samples that end an epoch are those of peers known from a round.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipelines.core.swarm.records import sender_name

ROUNDS_REMEMBERED = 8
"""Rounds, failed ones among them, after which a peer that was in none of them is a stranger again."""

ROUNDS_TO_SHOW_UP = 3
"""Rounds of this peer in which one that claims samples may be missing: it may join late, or lose a round."""


@dataclass
class _Seen:
    since: int
    """Number of rounds that this peer had had when it first saw the other one's record."""

    last: int | None = None
    """Number of the newest round with the other one."""


class Acquaintances:
    """Peers by libp2p id: in which of this peer's rounds they were. Written by one thread, read by others.

    A peer is no acquaintance of its own: its rounds with a listening anchor alone say nothing of anybody else.
    """

    def __init__(self, own_peer: str = "") -> None:
        """`own_peer` is this peer's libp2p id, which counts as nobody's."""
        self._own_peer, self._own_name = own_peer, sender_name(own_peer)
        self._met: frozenset[str] = frozenset()
        self._is_vouched_for = False
        self._num_rounds = self._last_number = self._met_at = 0
        self._seen: dict[str, _Seen] = {}
        self._recent: frozenset[str] = frozenset()
        self._vouched: frozenset[str] | None = None

    def vouch(self, names: frozenset[str] | None) -> None:
        """Set whom the run's anchors average with, by `sender_name`; None: the run has no anchors."""
        self._vouched = None if names is None else names - {self._own_name}
        self._is_vouched_for = names is not None and self._own_name in names

    def meet(self, peers: Collection[str]) -> None:
        """Set who has the training state that this peer has taken over: until its first round it knows no better."""
        self._met, self._met_at = frozenset(peers) - {self._own_peer}, self._num_rounds

    @property
    def believe_strangers(self) -> bool:
        """Whether a peer that knows nobody believes everybody: there is no anchor to ask."""
        return self._vouched is None

    def note_round(self, number: int, members: Collection[str]) -> None:
        """Record the newest whole round; calls between rounds (`number` unchanged) have no effect."""
        if number == self._last_number:
            return
        self._last_number, self._num_rounds = number, self._num_rounds + 1
        seen, now = dict(self._seen), self._num_rounds
        for peer in set(members) - {self._own_peer}:
            seen[peer] = _Seen(since=seen[peer].since if peer in seen else now, last=now)
        self._replace(seen)

    def note_failure(self) -> None:
        """Record a round of this peer that has failed, or for which it found nobody."""
        self._num_rounds += 1
        self._replace(self._seen)

    def note_claims(self, peers: Collection[str]) -> None:
        """Record who claims to train now; the others are forgotten, unless they were in one of the last rounds."""
        seen = {peer: held for peer, held in self._seen.items() if peer in peers or peer in self._recent}
        others = set(peers) - {self._own_peer}
        self._replace({peer: _Seen(since=self._num_rounds) for peer in others} | seen)

    @property
    def know_somebody(self) -> bool:
        """Whether anybody was in one of the last rounds."""
        return bool(self._recent)

    @property
    def names(self) -> frozenset[str]:
        """Whom this peer has averaged with, and whom an anchor vouches for, by `sender_name`."""
        return frozenset(map(sender_name, self._recent)) | (self._vouched or frozenset())

    @property
    def quorum(self) -> int:
        """How many of those whom this peer `know`s must be there for their word to count.

        Of those whom an anchor vouches for, half: who stays longest is not always honest.
        """
        return 0 if self._recent or self._vouched is None else (len(self._vouched) + 1) // 2

    def know(self, peer: str) -> bool:
        """Return whether a peer was in one of the last rounds, or, while none was, whether an anchor vouches for it."""
        if recent := self._recent:
            return peer in recent
        return self._vouched is not None and sender_name(peer) in self._vouched

    def count(self, peer: str) -> bool:
        """Return whether a peer's samples count: it is known, or too new to be judged."""
        held = self._seen.get(peer)
        return held is None or peer in self._recent or self._num_rounds - held.since < ROUNDS_TO_SHOW_UP

    def give_samples(self, present: Collection[str], *, listens: bool) -> Collection[str]:
        """Return whose samples end an epoch, of those `present`, this peer included.

        They are those of earlier rounds. The others do not count this peer either before its first round with them.
        While none of them is there, everybody counts, at first: a run begins, or all have come back. Afterwards this
        peer trains alone, whatever others claim, unless it only `listens`.
        """
        vouched, others = self._vouched or frozenset(), set(present) - {self._own_peer}
        known = others & self._recent | {peer for peer in others if sender_name(peer) in vouched}
        if not known and self._vouched is None and not self._recent:
            known = others & self._met
        if known:
            return known | {self._own_peer} if self._recent or self._is_vouched_for else known
        return {self._own_peer, *(others if listens or self._num_rounds < ROUNDS_TO_SHOW_UP else ())}

    def take_over_with(self, present: Collection[str]) -> frozenset[str]:
        """Return whose samples also end an epoch for who only listens: they had the state that it took over.

        It may have missed the round in which those whom it knows met them, and would be late for all that follow. Who
        comes to none of its next rounds does not count any more.
        """
        is_new = self._num_rounds - self._met_at < ROUNDS_TO_SHOW_UP
        return self._met.intersection(present) if is_new and self._recent else frozenset()

    def _replace(self, seen: dict[str, _Seen]) -> None:
        oldest = self._num_rounds - ROUNDS_REMEMBERED
        self._seen = seen
        self._recent = frozenset(peer for peer, held in seen.items() if held.last is not None and held.last > oldest)


def believed_epoch(claims: Mapping[str, int], known: Collection[str], *, believes_strangers: bool) -> int:
    """Return the latest epoch that at least half of those who can be believed have reached; 0 without others.

    `claims` are the epochs of the other peers' users, each of whom has one voice. Those who are `known` are believed;
    if nobody is, all are in a run without anchors: a newcomer knows nobody yet.
    """
    epochs = [epoch for voice, epoch in claims.items() if voice in known]
    if believes_strangers and not epochs:
        epochs = list(claims.values())
    return sorted(epochs)[len(epochs) // 2] if epochs else 0
