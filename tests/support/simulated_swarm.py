"""A swarm at the level of records and decisions, in virtual time: nothing is trained and nothing is sent.

Each epoch the peers that are in step have a round, some miss it, and now and then it splits in two. Attackers claim
epochs and states under free keys, and some take part in rounds. Peers decide with the same code as real ones; the
digest of an honest state names the round that it comes from.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace

from pipelines.core.epoch.acquaintances import Acquaintances, believed_epoch
from pipelines.core.state.anchors import Anchorage, anchored, is_contradicted
from pipelines.core.state.votes import count_votes, electorate
from pipelines.core.swarm.records import sender_name
from pipelines.features.anchors.roster import Roster

START = "start"
FAR = 10**6


@dataclass
class Peer:
    """An honest trainer."""

    name: str
    epoch: int = 0
    digest: str = START
    acquaintances: Acquaintances = field(init=False)
    num_rounds: int = 0
    has_missed: bool = False
    is_outvoted: bool = False

    def __post_init__(self) -> None:
        self.acquaintances = Acquaintances(self.name)


@dataclass
class SimulatedSwarm:
    """`epoch()` lets one pass; `states` counts the states of honest peers that are in step."""

    seed: int
    num_peers: int = 64
    num_attackers: int = 5
    keys_of_an_attacker: int = 12
    has_anchor: bool = True
    joins_and_leaves: float = 0.5
    """Peers that leave in an epoch, and as many that join."""

    miss_share: float = 0.03
    split_share: float = 0.02
    """Share of the epochs in which a quarter of the peers have a round of their own."""

    anchor_away: Collection[int] = ()
    """When the anchor is away, by the number of calls of `epoch`."""

    def __post_init__(self) -> None:
        self.chance, self.number = random.Random(self.seed), 0
        self.peers = [self._new_peer() for _ in range(self.num_peers)]
        self.roster, self.anchor = Roster(), SimpleNamespace(epoch=0, digest=START, returns=False)
        self.truth: dict[int, str] = {0: START}
        """Digest of each epoch's state in the larger round."""

        self.num_waiting = self.num_false = self.longest_fork = self._fork = self.time = self.num_lost_epochs = 0
        """How often a peer had nobody to ask, and took an attacker's state; for how many epochs on end honest peers
        that believed to be in step had different states; how often `epoch` was called; how many epochs were lost
        because a returning anchor found too few of those it knew."""

        for peer in self.peers:  # they have started together
            peer.acquaintances.note_round(1, [other.name for other in self.peers])
            peer.num_rounds = 1

    def _new_peer(self) -> Peer:
        self.number = getattr(self, "number", 0) + 1
        return Peer(f"peer{self.number}")

    @property
    def now(self) -> int:
        """The epoch that the run has reached."""
        return max(self.truth)

    def epoch(self) -> None:
        """Join, leave, agree on a state, have a round, if anybody is in step."""
        self.time += 1
        self._come_and_go()
        if self.is_anchor_here and self.anchor.epoch < self.now:
            self._let_the_anchor_return()
        claims = self._claims()
        for peer in self.peers:
            self._decide(peer, claims)
        self._fork = self._fork + 1 if len({peer.digest for peer in self._ready()}) > 1 else 0
        self.longest_fork = max(self.longest_fork, self._fork)
        self._have_rounds()

    @property
    def num_remembered(self) -> int:
        """Peers that the one with the best memory remembers."""
        return max(len(peer.acquaintances._seen) for peer in self.peers)

    @property
    def num_in_step(self) -> int:
        """Honest peers that have the newest state."""
        return len(self._ready())

    def _ready(self) -> list[Peer]:
        return [peer for peer in self.peers if not (peer.has_missed or peer.is_outvoted) and peer.epoch == self.now]

    @property
    def is_anchor_here(self) -> bool:
        """Whether the anchor takes part in this epoch."""
        return self.has_anchor and self.time not in self.anchor_away

    def _let_the_anchor_return(self) -> None:
        """It goes on from those it knows, if half of them are there, and otherwise from where it was."""
        there = {sender_name(peer.name) for peer in self._ready()} & set(self.roster.names)
        if 2 * len(there) >= len(self.roster.names):
            self.anchor = SimpleNamespace(epoch=self.now, digest=self.truth[self.now], returns=False)
            return
        self.num_lost_epochs += self.now - self.anchor.epoch
        self.truth = {self.anchor.epoch: self.anchor.digest}
        self.anchor = SimpleNamespace(epoch=self.anchor.epoch, digest=self.anchor.digest, returns=True)

    def _attacking_keys(self) -> list[str]:
        # Half of them are new in each epoch.
        turn = self.now
        return [
            f"evil{attacker}-{key if key % 2 else (turn, key)}"
            for attacker in range(self.num_attackers)
            for key in range(self.keys_of_an_attacker)
        ]

    def _participants(self) -> list[str]:
        """One key of each attacker takes part in rounds, and says otherwise what the others of its owner say."""
        return [f"evil{attacker}-1" for attacker in range(self.num_attackers)]

    def _come_and_go(self) -> None:
        if self.chance.random() < self.joins_and_leaves and len(self.peers) > 2:
            self.peers.remove(self.chance.choice(self.peers))
            newcomer = self._new_peer()
            newcomer.has_missed = True
            self.peers.append(newcomer)

    def _claims(self) -> dict[bytes, SimpleNamespace]:
        honest = {
            peer.name: (peer.epoch, peer.digest)
            for peer in self.peers
            if not (peer.has_missed and peer.num_rounds == 0)
        }
        false = {
            key: (FAR, "far") if index % 3 == 0 else (self.now, "zeros")
            for index, key in enumerate(self._attacking_keys())
        }
        anchor = {"anchor": (self.anchor.epoch, self.anchor.digest)} if self.is_anchor_here else {}
        return {
            name.encode(): SimpleNamespace(peer_id=name, epoch=epoch, digest=digest, shares=True)
            for name, (epoch, digest) in (honest | false | anchor).items()
        }

    def _seen(self) -> Anchorage:
        if not self.has_anchor:
            return Anchorage()
        present = self.anchor if self.is_anchor_here else None
        return Anchorage(has_anchors=True, present=present, roster=frozenset(self.roster.names))

    def _decide(self, peer: Peer, claims: dict[bytes, SimpleNamespace]) -> None:
        seen, known = self._seen(), peer.acquaintances
        known.vouch(seen.roster if seen.has_anchors else None)
        known.note_claims({claim.peer_id for claim in claims.values()})
        others = {key: claim for key, claim in claims.items() if claim.peer_id != peer.name}
        epochs = {claim.peer_id: claim.epoch for claim in others.values()}
        believed = believed_epoch(
            epochs, {name for name in epochs if known.know(name)}, believes_strangers=known.believe_strangers
        )
        own = {key for key, claim in claims.items() if known.know(claim.peer_id) or claim.peer_id == peer.name}
        verdict = count_votes(claims, own) if own else None
        peer.is_outvoted = not peer.has_missed and bool(is_contradicted(peer.epoch, peer.digest, seen.present, verdict))
        if peer.has_missed or peer.is_outvoted or believed > peer.epoch:
            self._take_over(peer, others, seen)

    def _take_over(self, peer: Peer, others: dict[bytes, SimpleNamespace], seen: Anchorage) -> None:
        known = peer.acquaintances
        voters = electorate(
            others, set(others), known.know, believes_strangers=known.believe_strangers, quorum=known.quorum
        )
        votes = count_votes(others, voters) if voters else None
        verdict = anchored(votes, seen.present, others)
        if verdict is None or verdict.epoch > self.now:
            self.num_waiting += 1
            return
        peer.epoch, peer.digest = verdict.epoch, verdict.digest
        peer.has_missed = peer.is_outvoted = False
        self.num_false += verdict.digest in ("zeros", "far")

    def _have_rounds(self) -> None:
        ready = self._ready()
        if not ready:
            return
        missing = {peer.name for peer in ready if self.chance.random() < self.miss_share}
        groups = [[peer for peer in ready if peer.name not in missing]]
        if self.chance.random() < self.split_share:
            self.chance.shuffle(groups[0])
            cut = len(groups[0]) // 4
            groups = [groups[0][cut:], groups[0][:cut]]
        for number, group in enumerate(groups):
            members = [peer.name for peer in group] + (self._participants() if number == 0 else [])
            digest = f"{self.now + 1}.{number}"
            for peer in group:
                peer.num_rounds += 1
                peer.acquaintances.note_round(peer.num_rounds, members)
                is_true = peer.digest == self.truth[self.now]
                peer.epoch, peer.digest = peer.epoch + 1, digest if is_true else f"{peer.name}:{self.now + 1}"
            if number == 0 and self.is_anchor_here:
                self.roster.note_round(members)
        for peer in ready:
            peer.has_missed = peer.name in missing
        self.truth = {self.now + 1: f"{self.now + 1}.0"}
        if self.is_anchor_here:
            self.anchor = SimpleNamespace(epoch=self.now, digest=self.truth[self.now], returns=False)
