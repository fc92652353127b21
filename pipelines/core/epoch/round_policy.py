"""A training peer's decisions at the end of an epoch: figures in, decisions out, no network.

`epoch_end` calls it and acts. Epochs are numbers of optimizer steps; times are seconds.
"""

from dataclasses import dataclass
from enum import Enum, auto

from pipelines.core.averaging.figures import AveragingRound
from pipelines.core.run.training_run import TrainingRun

FAILURES_TO_BE_ALONE = 3
"""Rounds in a row without an average after which a peer that knows nobody takes those who claim to train for liars."""

MAX_STALENESS = 1
"""Epochs by which a gradient may be late: the same delay as in the paper's delayed updates (section 3.2)."""


MAX_FAILED_LOADS = 5
WITNESSES_TO_LEAVE = 2
"""Others that must be ahead before a peer that cannot catch up leaves: no single one can make it leave."""


class Search(Enum):
    """State of a gradient round's matchmaking."""

    NONE = auto()
    OPEN = auto()
    """Matchmaking is in progress or done; the round has not started."""

    IN_ROUND = auto()
    OVER = auto()


@dataclass(frozen=True, kw_only=True)
class RoundPolicy:
    """The decisions of one run's peers."""

    delays_averaging: bool
    """Whether gradients are averaged while those of the next epoch are computed."""

    matchmaking_seconds: float
    searches_early: bool = True
    """Whether a group is looked for before the epoch ends; not if members tell each other then what they contribute."""

    @classmethod
    def of(cls, run: TrainingRun, *, searches_early: bool) -> "RoundPolicy":
        """Return the policy that a run's settings ask for."""
        return cls(
            delays_averaging=run.delay_gradient_averaging,
            matchmaking_seconds=run.matchmaking_seconds,
            searches_early=searches_early,
        )

    def begins_search(self, search: Search, seconds_left: float) -> bool:
        """Return whether to start matchmaking for the next round; `seconds_left` is the epoch's remaining time.

        hivemind looks for the next round's group while the last one may still be running. After a round that not all
        completed, some look for a group for that round again and others for the next: they form one group, average
        gradients of different parameters, and the swarm diverges (seen in a swarm of four with epochs of 4 s).
        """
        is_free = search in (Search.NONE, Search.OVER)
        return self.searches_early and is_free and seconds_left <= self.matchmaking_seconds

    def is_alone(self, num_peers: int, *, num_failures: int, knows_somebody: bool) -> bool:
        """Return whether a peer steps along its own gradient; otherwise only a round's average moves its parameters.

        `num_peers` counts this one, and an anchor. Who only claims to train must not stop a peer that trains alone.
        """
        return num_peers <= 1 or (num_failures >= FAILURES_TO_BE_ALONE and not knows_somebody)

    def takes_state_over(self, local_epoch: int, global_epoch: int, *, has_missed_round: bool, outvoted: bool) -> bool:
        """Return whether the others have ended an epoch without this peer, or have outvoted it.

        hivemind would look for a group for the old epoch, find one when the others end the next, and stay an epoch
        behind with few samples each time. With delayed averaging, peers are ahead while their round is running.
        """
        num_ahead = 1 if self.delays_averaging else 0
        return local_epoch + num_ahead < global_epoch or has_missed_round or outvoted


def is_incomplete(before: AveragingRound, after: AveragingRound) -> bool:
    """Judge a gradient round by two readings of its averager's figures: no round at all, or too small a share."""
    no_round = after.num_rounds == before.num_rounds
    return no_round or after.num_incomplete_rounds > before.num_incomplete_rounds


def epoch_to_adopt(local_epoch: int, global_epoch: int) -> int:
    """Return the epoch in which a peer continues with a downloaded state.

    One missing step is tolerated; the state keeps its epoch in this peer's signed record, and is not taken for newer.
    """
    return global_epoch if local_epoch == global_epoch - 1 else local_epoch


class Setback(Enum):
    """What a peer does after a download of the others' state that did not bring it into step."""

    TRY_AGAIN = auto()
    DOUBT = auto()
    """Nobody has the state that others claim, or too few claim it to be believed: the peer goes on with its own."""

    LEAVE = auto()


def after_setback(num_failed: int, *, is_behind: bool, was_offered: bool, num_witnesses: int) -> Setback:
    """Return what a peer does after `num_failed` failed downloads in a row, `is_behind` or outvoted.

    `was_offered`: somebody serves the state; `num_witnesses` others that it has averaged with claim to have it.
    """
    if num_failed < MAX_FAILED_LOADS:
        return Setback.DOUBT if is_behind and not was_offered else Setback.TRY_AGAIN
    return Setback.LEAVE if was_offered and num_witnesses >= WITNESSES_TO_LEAVE else Setback.DOUBT


def keeps_gradient(first_epoch: int, epoch: int, *, outvoted: bool) -> bool:
    """Return whether a gradient of `first_epoch` still counts after loading the state of `epoch`."""
    return epoch <= first_epoch + MAX_STALENESS and not outvoted
