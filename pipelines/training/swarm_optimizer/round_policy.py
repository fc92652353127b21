"""What a training peer decides at the end of an epoch: figures in, decisions out, no network.

`epoch_end` asks here and acts. Epochs are numbers of optimizer steps; times are seconds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from pipelines.training.averaging.figures import AveragingRound
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.transfer import NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING
from pipelines.training.swarm_optimizer.progress_tracking import witnessed_epoch

EPOCHS_OF_NOTICE = 2
"""A call in the round that begins epoch e is for epoch e + 1: there is an epoch's time for it to arrive."""

MAX_STALENESS = 1
"""Epochs by which a gradient may be late: the delay that the paper's delayed updates have, too (section 3.2)."""


class Search(Enum):
    """How far the search for the group of a gradient round is."""

    NONE = auto()
    OPEN = auto()
    """A group is sought or found; the round has not begun."""

    IN_ROUND = auto()
    OVER = auto()


class GradientSource(Enum):
    """Along which gradient a peer steps at the end of an epoch."""

    ROUND = auto()
    """The average of a round with others."""

    OWN = auto()
    """Its own: it is alone, or the group that it looked for is used up."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a gradient round has left behind."""

    is_incomplete: bool
    """Whether parameters are apart, so that all peers should average them."""

    counts_here: bool
    """Whether this peer lacks something itself; otherwise it is another that was lost on the way."""


@dataclass(frozen=True, kw_only=True)
class RoundPolicy:
    """The decisions of one run's peers."""

    delays_averaging: bool
    """Whether gradients are averaged while those of the next epoch are computed."""

    average_state_every: int
    matchmaking_seconds: float

    @classmethod
    def of(cls, run: TrainingRun) -> "RoundPolicy":
        """Return the policy that a run's settings ask for."""
        return cls(
            delays_averaging=run.delay_gradient_averaging,
            average_state_every=run.average_state_every,
            matchmaking_seconds=run.matchmaking_seconds,
        )

    def begins_search(self, search: Search, seconds_left: float) -> bool:
        """Return whether to look for the group of the coming round; `seconds_left` is what the epoch will still last.

        hivemind looks for the group of the next round while the last one may be going on. After a round that not all
        had, some look for the group of that round again and others for that of the next: they form one group, average
        gradients of different parameters, and the swarm comes apart (seen in a swarm of four, whose epochs lasted 4 s).
        """
        return search in (Search.NONE, Search.OVER) and seconds_left <= self.matchmaking_seconds

    def gradient_source(self, search: Search, num_peers: int) -> GradientSource:
        """Return along which gradient to step, when the swarm has enough samples."""
        is_used_up = search in (Search.IN_ROUND, Search.OVER)
        return GradientSource.OWN if is_used_up or num_peers <= 1 else GradientSource.ROUND

    def averages_state(self, next_epoch: int, num_peers: int, calls: Collection[int], *, is_averaging: bool) -> bool:
        """Return whether the state is averaged at the beginning of an epoch: at regular ones, and when called to."""
        is_due = next_epoch in calls or next_epoch % self.average_state_every == 0
        return num_peers > 1 and is_due and not is_averaging

    def takes_state_over(self, local_epoch: int, global_epoch: int, *, has_missed_round: bool, outvoted: bool) -> bool:
        """Return whether the others have ended an epoch that this peer has not, and without it, or have outvoted it.

        hivemind would look for a group for the old epoch, find one when the others end the next, and stay an epoch
        behind with few samples each time. Where averaging is delayed, peers are ahead while their round is going on.
        """
        num_ahead = 1 if self.delays_averaging else 0
        return local_epoch + num_ahead < global_epoch or has_missed_round or outvoted

    def stays_behind(self, local_epoch: int, state_epoch: int) -> bool:
        """Return whether this peer's parameters lack a step of the others, and no averaging of the state is near.

        Near: before the peer would take the state over once more because it is outvoted.
        """
        epochs_to_averaging = self.average_state_every - local_epoch % self.average_state_every
        return state_epoch < local_epoch and epochs_to_averaging > NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING


def judge(before: AveragingRound, after: AveragingRound) -> Verdict:
    """Judge a gradient round by two readings of its averager's figures.

    Parameters are apart after no round at all, too small a share here, or a sender that was lost: then it is that
    sender who lacks the part that this peer reduced.
    """
    no_round = after.num_rounds == before.num_rounds
    too_little = after.num_incomplete_rounds > before.num_incomplete_rounds
    return Verdict(
        is_incomplete=no_round or too_little or after.num_senders_lost > 0,
        counts_here=after.num_senders_lost == 0 or after.share_averaged < 1,
    )


def epoch_of_call(local_epoch: int, global_epoch: int) -> int:
    """Return the epoch at whose beginning all peers average the state, if one of them calls now."""
    return max(local_epoch, global_epoch) + EPOCHS_OF_NOTICE


def have_ended_epoch(local_epoch: int, epochs_of_others: Sequence[int]) -> bool:
    """Return whether so many others say that they have ended this peer's epoch that it is believed."""
    return witnessed_epoch(epochs_of_others) > local_epoch


def epoch_to_adopt(local_epoch: int, global_epoch: int) -> int:
    """Return the epoch in which a peer goes on with the state that it has taken over.

    One missing step is overlooked; the state keeps its epoch in what this peer signs, and is not taken for newer.
    """
    return global_epoch if local_epoch == global_epoch - 1 else local_epoch


def keeps_gradient(first_epoch: int, epoch: int, *, outvoted: bool) -> bool:
    """Return whether a gradient of `first_epoch` still counts after the state of `epoch` was taken over."""
    return epoch <= first_epoch + MAX_STALENESS and not outvoted
