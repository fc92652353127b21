"""A training peer's decisions at the end of an epoch: figures in, decisions out, no network.

`epoch_end` calls it and acts. Epochs are numbers of optimizer steps; times are seconds.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from pipelines.training.averaging.figures import AveragingRound
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.transfer import NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING

EPOCHS_OF_NOTICE = 2
"""A call in the round that starts epoch e is for epoch e + 1: it has an epoch's time to arrive."""

MAX_STALENESS = 1
"""Epochs by which a gradient may be late: the same delay as in the paper's delayed updates (section 3.2)."""


class Search(Enum):
    """State of a gradient round's matchmaking."""

    NONE = auto()
    OPEN = auto()
    """Matchmaking is in progress or done; the round has not started."""

    IN_ROUND = auto()
    OVER = auto()


class GradientSource(Enum):
    """Which gradient a peer uses for its step at the end of an epoch."""

    ROUND = auto()
    """The average of a round with others."""

    OWN = auto()
    """Its own: it is alone, or its matchmaking attempt is used up."""


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
        """Return whether to start matchmaking for the next round; `seconds_left` is the epoch's remaining time.

        hivemind looks for the next round's group while the last one may still be running. After a round that not all
        completed, some look for a group for that round again and others for the next: they form one group, average
        gradients of different parameters, and the swarm diverges (seen in a swarm of four with epochs of 4 s).
        """
        return search in (Search.NONE, Search.OVER) and seconds_left <= self.matchmaking_seconds

    def gradient_source(self, search: Search, num_peers: int) -> GradientSource:
        """Return which gradient to use for the step, when the swarm has enough samples."""
        is_used_up = search in (Search.IN_ROUND, Search.OVER)
        return GradientSource.OWN if is_used_up or num_peers <= 1 else GradientSource.ROUND

    def averages_state(self, next_epoch: int, num_peers: int, calls: Collection[int], *, is_averaging: bool) -> bool:
        """Return whether the state is averaged at the start of an epoch: at regular ones, and when called for."""
        is_due = next_epoch in calls or next_epoch % self.average_state_every == 0
        return num_peers > 1 and is_due and not is_averaging

    def takes_state_over(self, local_epoch: int, global_epoch: int, *, has_missed_round: bool, outvoted: bool) -> bool:
        """Return whether the others have ended an epoch without this peer, or have outvoted it.

        hivemind would look for a group for the old epoch, find one when the others end the next, and stay an epoch
        behind with few samples each time. With delayed averaging, peers are ahead while their round is running.
        """
        num_ahead = 1 if self.delays_averaging else 0
        return local_epoch + num_ahead < global_epoch or has_missed_round or outvoted

    def stays_behind(self, local_epoch: int, state_epoch: int) -> bool:
        """Return whether this peer's parameters lack a step of the others, and no averaging of the state is near.

        Near: before the peer would download the state again because it is outvoted.
        """
        epochs_to_averaging = self.average_state_every - local_epoch % self.average_state_every
        return state_epoch < local_epoch and epochs_to_averaging > NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING


def is_incomplete(before: AveragingRound, after: AveragingRound) -> bool:
    """Judge a gradient round by two readings of its averager's figures: whether this peer's parameters have diverged.

    They have after no round at all, or too small a share here. What a single reducer did not deliver has been taken
    from other members by then, also by a sender that was lost.
    """
    no_round = after.num_rounds == before.num_rounds
    return no_round or after.num_incomplete_rounds > before.num_incomplete_rounds


def epoch_of_call(local_epoch: int, global_epoch: int) -> int:
    """Return the epoch at whose start all peers average the state, if one of them calls now."""
    return max(local_epoch, global_epoch) + EPOCHS_OF_NOTICE


def epoch_to_adopt(local_epoch: int, global_epoch: int) -> int:
    """Return the epoch in which a peer continues with a downloaded state.

    One missing step is tolerated; the state keeps its epoch in this peer's signed record, and is not taken for newer.
    """
    return global_epoch if local_epoch == global_epoch - 1 else local_epoch


def keeps_gradient(first_epoch: int, epoch: int, *, outvoted: bool) -> bool:
    """Return whether a gradient of `first_epoch` still counts after loading the state of `epoch`."""
    return epoch <= first_epoch + MAX_STALENESS and not outvoted
