"""What the swarm's records say of its training state at one moment: read once, then only decided. No network."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipelines.core.state.anchors import Anchorage, anchored
from pipelines.core.state.votes import VoteResult, count_votes, one_vote_each
from pipelines.core.swarm.peer_records import StateRecord
from pipelines.core.swarm.records import sender_name


@dataclass(frozen=True, kw_only=True)
class StateSurvey:
    """Claims, votes and anchors, as one peer sees them."""

    claims: Mapping[bytes, StateRecord]
    """The other peers' signed states, by public key."""

    epochs: Mapping[bytes, int]
    """Epochs of the other live training peers, by public key."""

    voters: Collection[bytes]
    """The trainers whose votes count, see `votes.electorate`."""

    believes_strangers: bool
    """Whether all claims count if nobody votes: the run has no anchors, and this peer knows nobody."""

    users: Mapping[bytes, str]
    """Who has one vote, by public key; see `count_votes`."""

    anchorage: Anchorage

    def verdict(self, refused: Collection[str] = (), *, is_overdue: bool = False) -> VoteResult | None:
        """Return the state to take; None: nobody who is believed serves one. Digests in `refused` are unusable.

        `is_overdue`: an anchor has had the time to sign what the others name; see `anchored`.
        """
        verdict = None
        if self.voters or self.believes_strangers:
            verdict = count_votes(self.claims, self.voters, refused, self.users)
        return anchored(verdict, self.anchorage.present, self.claims, refused, is_overdue=is_overdue)

    def bears_out(self, epoch: int, digest: str, senders: Collection[str]) -> bool:
        """Return whether the others show that a state which a peer has computed from `senders`' values is the run's.

        At least half of the voters are among the senders (`sender_name`), so that no other round of this epoch can have
        averaged more of them. Of those who have reached the epoch more than half name the state, so that it is not this
        peer alone that got an average. Who is behind does not contradict: it has missed the round, or is about to say.
        """
        voices = {key: self.users.get(key, key) for key in self.voters if key in self.claims}
        present = {voice for key, voice in voices.items() if sender_name(self.claims[key].peer_id) in senders}
        claimed = [(voice, (int(self.claims[key].epoch), self.claims[key].digest)) for key, voice in voices.items()]
        votes = one_vote_each((voice, vote) for voice, vote in claimed if vote[0] >= epoch)
        return 2 * len(present) >= len(set(voices.values())) and 2 * votes.count((epoch, digest)) > len(votes)

    def newest_epoch(self, *, is_overdue: bool = False) -> int:
        """Return the epoch that the run's state has reached; 0 if there is none that this peer believes in."""
        if (verdict := self.verdict(is_overdue=is_overdue)) is not None:
            return verdict.epoch
        return int(self.anchorage.present.epoch) if self.anchorage.present else 0

    @property
    def is_without_word(self) -> bool:
        """Whether somebody trains in a run with anchors, and this peer cannot tell now which state it has."""
        return self.anchorage.has_anchors and bool(self.epochs) and self.verdict() is None

    @property
    def is_among_strangers(self) -> bool:
        """Whether somebody trains, and neither an anchor nor anybody whom this peer believes is there to ask."""
        is_asking = self.anchorage.has_anchors and self.anchorage.present is None and bool(self.epochs)
        return is_asking and not self.voters
