"""The end of an epoch at a training peer, from top to bottom: `end_epoch`. The decisions are in `round_policy`.

A peer looks for one group at a time, and comes only into groups that average the gradients of its epoch: who has missed
a round must not spoil the next one. With delayed averaging, a round runs in a thread while gradients of the next epoch
are gathered.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hivemind.averaging.control import StepControl
from hivemind.utils import get_dht_time

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.group.time_limits import RoundTimes
from pipelines.core.epoch.acquaintances import Acquaintances
from pipelines.core.epoch.gathering import SummedGradients
from pipelines.core.epoch.missed_rounds import (
    MissedRoundError,
    leave_round,
    search_of,
    stop_looking,
    tag_along,
    wait_for_round,
)
from pipelines.core.epoch.progress_tracking import SwarmProgressTracker
from pipelines.core.epoch.round_policy import RoundPolicy, Search, is_incomplete
from pipelines.core.gradients.epoch_listener import EpochListener
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.anchors import AnchorWatch
from pipelines.core.state.training_state import TrainingState
from pipelines.core.state.transfer import StateTransfer
from pipelines.core.swarm.records import PROGRESS, SwarmRecords

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class EpochContext:
    """The parts of a training peer involved in an epoch's end, and their results."""

    run: TrainingRun
    policy: RoundPolicy
    tracker: SwarmProgressTracker
    """Replaced after a pause."""

    state: TrainingState
    averager: SwarmAverager

    gathering: SummedGradients
    records: SwarmRecords
    transfer: StateTransfer
    round_times: RoundTimes
    acquaintances: Acquaintances
    anchors: AnchorWatch
    listeners: Sequence[EpochListener] = ()
    listens: bool = False
    """Whether this peer takes part without a gradient of its own, as anchors do."""

    scheduled: StepControl | None = None
    """The gradient round in matchmaking or in progress."""

    has_missed_round: bool = False
    """Whether the others have had a round that this peer missed; it must download their state."""

    num_incomplete_rounds: int = 0
    """Gradient rounds that failed or averaged too small a share, at this peer."""

    num_failures_in_a_row: int = 0
    """Rounds since the last one with an average."""

    @property
    def epoch(self) -> int:
        """The epoch whose gradients are gathered here."""
        return self.state.local_epoch


def end_epoch(parts: EpochContext) -> None:
    """Average gradients with the others and step: the swarm has enough samples.

    An epoch whose round failed everywhere ends without a step, so that peers stay equal; its gradients count in the
    next one, unless that has begun already (delayed averaging).

    Raises:
        MissedRoundError: the others have had the round without this peer, which must download their state.
    """
    run, state, tracker = parts.run, parts.state, parts.tracker
    if run.delay_gradient_averaging:
        finish_delayed_round(parts)
    with tracker.pause_updates():
        if run.delay_optimizer_step:
            state.wait_for_updates()
        parts.gathering.finish(parts.epoch)
        for listener in parts.listeners:
            listener.round_began()
        has_average = None
        if is_alone(parts):
            go_alone(parts)
        elif (control := begin_round(parts)) is not None and run.delay_gradient_averaging:
            has_average = partial(finish_round, parts, control, parts.epoch + 1)
        elif control is None or not finish_round(parts, control, parts.epoch + 1):
            end_without_step(parts)
            return
        # The optimizer reads the averager's tensors: their current values, or those after `has_average`.
        state.step(has_average, in_background=run.delay_optimizer_step)
        tracker.update_epoch(new_epoch=parts.epoch)
        parts.gathering.end_epoch()


def look_for_group(parts: EpochContext) -> None:
    """Start matchmaking for the next round if the epoch is about to end."""
    parts.averager.epoch_to_average = parts.epoch
    search = search_of(parts.scheduled)
    if search is Search.IN_ROUND:
        return
    if parts.policy.begins_search(search, parts.tracker.estimated_next_update_time - get_dht_time()):
        parts.scheduled = parts.averager.schedule(timeout=parts.round_times.timeout)


def end_without_step(parts: EpochContext) -> None:
    """End an epoch whose round failed: the state stays as it is, and what was gathered counts in the next epoch."""
    parts.state.set_epoch(parts.epoch + 1)
    for listener in parts.listeners:
        listener.gradients_kept()
    parts.tracker.go_on(parts.epoch, parts.gathering.take_back())


def is_alone(parts: EpochContext) -> bool:
    """Return whether this peer steps along its own gradient."""
    return not parts.listens and parts.policy.is_alone(
        parts.tracker.num_peers + (parts.anchors.look().present is not None),
        num_failures=parts.num_failures_in_a_row,
        knows_somebody=parts.acquaintances.know_somebody,
    )


def go_alone(parts: EpochContext) -> None:
    """Stop looking for a group, and load this peer's own gradient as if it were the average."""
    if search_of(parts.scheduled) is Search.OPEN and parts.scheduled is not None:
        stop_looking(parts.scheduled)
    parts.scheduled, parts.num_failures_in_a_row = None, 0
    for listener in parts.listeners:
        listener.round_averaged(parts.epoch + 1)
    load(parts)


def load(parts: EpochContext) -> float:
    """Load what was gathered into the averager; return its weight."""
    with parts.averager.get_tensors() as tensors:
        return parts.gathering.load(tensors)


def begin_round(parts: EpochContext) -> StepControl | None:
    """Load this peer's gradient into the averager, which may begin the round now; return None if it could not."""
    parts.averager.expect_samples(parts.tracker.plausible_samples())
    if search_of(parts.scheduled) in (Search.IN_ROUND, Search.OVER):
        leave(parts)
    parts.averager.epoch_to_average = parts.epoch
    timeout = parts.round_times.timeout
    try:
        parts.scheduled = parts.averager.step(load(parts), parts.scheduled, timeout=timeout, wait=False)
        return parts.scheduled
    except Exception as error:  # whatever it is, the round has failed for this peer
        logger.warning("A round of averaging could not start: %r", error)
        leave(parts)
        note_failure(parts)
        return None


def finish_round(parts: EpochContext, control: StepControl, epoch: int) -> bool:
    """Wait for the round; return whether there is an average, False if the round failed at all peers.

    `epoch` is that of the state after its step: `parts` may be an epoch further by then. With delayed averaging,
    this runs in a thread while gradients of the next epoch are gathered.

    Raises:
        MissedRoundError: the others have had it, and this peer has not.
    """
    before, has_average = parts.averager.last_round, True
    try:
        wait_for_round(
            control,
            parts.round_times.timeout,
            partial(have_others_moved_on, parts),
            lambda: parts.averager.last_round.attempt_until,
        )
    except MissedRoundError:
        parts.has_missed_round = True
        raise
    except (Exception, asyncio.CancelledError) as error:
        # Who only listens may be the only one that has found no group.
        if parts.listens or parts.has_missed_round or have_others_moved_on(parts):
            parts.has_missed_round = True
            raise MissedRoundError(f"A round of averaging failed here, but not elsewhere: {error!r}.") from error
        logger.warning("A round of averaging failed; this epoch ends without a step: %r", error)
        has_average = False
    parts.num_incomplete_rounds += is_incomplete(before, parts.averager.last_round)
    if has_average:
        parts.num_failures_in_a_row = 0
        for listener in parts.listeners:
            listener.round_averaged(epoch)
    else:
        note_failure(parts)
        if parts.run.delay_gradient_averaging:  # the next epoch's gradients have taken their place
            for listener in parts.listeners:
                listener.round_lost()
            parts.gathering.lose_round()
    return has_average


def note_failure(parts: EpochContext) -> None:
    """Remember a round that failed: those who claim to train and come to none do not count for ever."""
    parts.num_failures_in_a_row += 1
    parts.acquaintances.note_failure()


def finish_delayed_round(parts: EpochContext) -> None:
    """Wait until the last epoch's round is over, here and at the other peers.

    Raises:
        MissedRoundError: the others have had it, and this peer has not.
    """
    parts.state.wait_for_updates()  # each has its own time-outs
    if parts.scheduled is not None and parts.scheduled.triggered:
        leave(parts)
    if parts.has_missed_round:
        raise MissedRoundError("The others have averaged the last epoch's gradients without this peer.")
    look_for_group(parts)


def leave(parts: EpochContext) -> None:
    """Leave the gradient round in matchmaking or in progress."""
    if parts.scheduled is not None:
        leave_round(parts.scheduled, partial(tag_along, seconds=parts.round_times.timeout))
        parts.scheduled = None


def have_others_moved_on(parts: EpochContext) -> bool:
    """Query the DHT, which the tracker does not do during a round.

    With delayed averaging, the others' epochs show it only after the next one, but their states show it at once. Who
    knows nobody yet learns from states that an anchor knows, and everybody from what an anchor has signed: after the
    last epoch the others may have left before this peer looks.
    """
    if parts.tracker.believed_epoch(parts.records.read(PROGRESS)) > parts.epoch:
        return True
    if parts.run.delay_gradient_averaging:
        return parts.transfer.look().newest_epoch() >= parts.epoch
    anchor = parts.transfer.look_at_anchors().present
    if anchor is not None and anchor.epoch > parts.epoch:
        return True
    return not parts.acquaintances.know_somebody and parts.transfer.look().newest_epoch() > parts.epoch
