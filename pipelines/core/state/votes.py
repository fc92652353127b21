"""Which training state a newcomer loads: the one that most signed trainers name; pure decisions, no network.

A vote is a peer's signed record that says: at this epoch my state has this digest. Trainers vote; the claims of others,
such as auxiliary peers, count only while nobody trains. A liar has one vote and is outvoted as long as more honest
trainers agree with each other than liars do. An epoch that the swarm cannot have reached, according to half of the
voters, does not count: with the newest state preferred among equals, it would win every tie. Who may sign at all
is up to the run's admission. Where everybody may join, keys are free, so a trainer asks only those that it has averaged
with; a newcomer knows nobody, and believes the run's anchors (`anchors`), or the most where there are none.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

MAX_EPOCHS_AHEAD = 16
"""Honest claims differ: a snapshot is kept while it is read, and the swarm moves on."""


class StateClaim(Protocol):
    """A peer's claim about its state; see `peer_records.StateRecord`."""

    peer_id: str
    epoch: int
    digest: str
    shares: bool


@dataclass(frozen=True, kw_only=True)
class VoteResult:
    """The state that most signed trainers name."""

    epoch: int
    digest: str
    num_votes: int
    num_voters: int
    num_late: int
    """Voters that have not reached this epoch yet."""

    donors: tuple[str, ...]
    """libp2p ids of the peers that claim to have exactly this state and serve it."""

    outvoted: tuple[str, ...]
    """libp2p ids of those that name another digest for this epoch, or an epoch not reached yet."""

    is_anchored: bool = False
    """Whether an anchor has signed it, so that votes do not matter."""

    @property
    def is_clear(self) -> bool:
        """Whether more than half of all voters name this state; around the end of an epoch they may be divided."""
        return 2 * self.num_votes > self.num_voters

    @property
    def is_decided(self) -> bool:
        """Whether waiting is pointless: the state has a majority, or none of its epoch can get one any more.

        Peers whose parameters have drifted apart each name their own state.
        """
        return self.is_clear or 2 * (self.num_votes + self.num_late) <= self.num_voters

    def __str__(self) -> str:
        by = "signed by an anchor" if self.is_anchored else f"named by {self.num_votes} of {self.num_voters}"
        return f"epoch {self.epoch}, {by}"


def count_votes(
    claims: Mapping[bytes, StateClaim],
    trainers: Collection[bytes],
    refused: Collection[str] = (),
    users: Mapping[bytes, str] = {},
) -> VoteResult | None:
    """Return the state with the most votes, the newest among equals, or None if nobody serves one.

    `claims` and `trainers` go by public key, and so do `users`, who have one vote each; a key that is not there votes
    for itself. Digests in `refused` were found to be unusable.
    """
    voters = {key: claim for key, claim in claims.items() if key in trainers} or claims
    ballots = one_vote_each((users.get(key, key), (claim.epoch, claim.digest)) for key, claim in voters.items())
    newest = newest_plausible_epoch([epoch for epoch, _ in ballots])
    votes = Counter(ballots)
    holders: dict[tuple[int, str], set[str]] = {}
    for claim in claims.values():
        if claim.shares and claim.digest not in refused and claim.epoch <= newest:
            holders.setdefault((claim.epoch, claim.digest), set()).add(claim.peer_id)
    if not holders:
        return None
    epoch, digest = max(holders, key=lambda state: (votes[state], state))
    contradict = [c for c in claims.values() if c.epoch > newest or (c.epoch == epoch and c.digest != digest)]
    return VoteResult(
        epoch=epoch,
        digest=digest,
        num_votes=votes[epoch, digest],
        num_voters=len(ballots),
        num_late=sum(voted < epoch for voted, _ in ballots),
        donors=tuple(sorted(holders[epoch, digest])),
        outvoted=tuple(sorted({claim.peer_id for claim in contradict})),
    )


def differs_from(verdict: VoteResult | None, epoch: int, digest: str) -> bool | None:
    """Return whether a peer's own state of this epoch is not the one that wins; None while that is not known.

    Among those that agree with nobody one wins by its digest, so that all know which.
    """
    if verdict is None or verdict.epoch != epoch or not verdict.is_decided:
        return None
    return verdict.digest != digest


def electorate(
    claims: Mapping[bytes, StateClaim],
    trainers: Collection[bytes],
    knows: Callable[[str], bool],
    *,
    believes_strangers: bool,
    quorum: int = 0,
) -> Collection[bytes]:
    """Return the trainers who vote: those whose libp2p ids this peer `knows`, if they are at least a `quorum`.

    If it knows none: all of them in a run without anchors (`believes_strangers`), otherwise nobody.
    """
    known = {key for key in trainers if key in claims and knows(claims[key].peer_id)}
    if believes_strangers and not known:
        return trainers
    return known if len(known) >= quorum else ()


def one_vote_each(votes: Iterable[tuple[Hashable, tuple[int, str]]]) -> list[tuple[int, str]]:
    """Return one vote for each voter: the one that most of its keys cast, the newest among equals."""
    by_voter: dict[Hashable, Counter[tuple[int, str]]] = {}
    for voter, vote in votes:
        by_voter.setdefault(voter, Counter())[vote] += 1
    return [max(cast, key=lambda vote: (cast[vote], vote)) for cast in by_voter.values()]


def newest_plausible_epoch(epochs: Collection[int]) -> int:
    """Return the last epoch that a swarm can have reached, given that half have reached these; 0 if there are none."""
    return sorted(epochs)[(len(epochs) - 1) // 2] + MAX_EPOCHS_AHEAD if epochs else 0


def donors_in_turn(
    verdict: VoteResult, avoided: Collection[str], generator: random.Random, knows: Callable[[str], bool]
) -> list[str]:
    """Return the donors to ask: those that this peer `knows` first, since anybody can name a state and serve nothing.

    Otherwise in random order: newcomers arriving together do not all ask the same one.
    """
    donors = [donor for donor in verdict.donors if donor not in avoided]
    generator.shuffle(donors)
    return sorted(donors, key=knows, reverse=True)


def cut_into_jobs(sizes: Mapping[int, int], job_bytes: int) -> list[list[int]]:
    """Return the tensors to download, by number, in runs of at least `job_bytes`, so that a lost run costs little."""
    jobs, current, num_bytes = [], [], 0
    for index, size in sizes.items():
        current.append(index)
        num_bytes += size
        if num_bytes >= job_bytes:
            jobs.append(current)
            current, num_bytes = [], 0
    return jobs + ([current] if current else [])
