"""The end of an epoch at a training peer, from top to bottom: `end_epoch`. The decisions are in `round_policy`.

With delayed averaging, a round runs in a thread while gradients of the next epoch are gathered. A peer then looks for
one group at a time, and finds only peers that average the gradients of the same epoch.
"""

import asyncio
import concurrent.futures
import logging
from dataclasses import dataclass
from functools import partial

from hivemind.averaging.control import StepControl
from hivemind.utils import get_dht_time

from pipelines.swarm.records import SwarmRecords
from pipelines.training.averaging.group.time_limits import RoundTimes
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.averager import SwarmStateAverager
from pipelines.training.state.transfer import StateTransfer
from pipelines.training.swarm_optimizer.acquaintances import Acquaintances
from pipelines.training.swarm_optimizer.gathering import Gathering
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.swarm_optimizer.missed_rounds import (
    MissedRoundError,
    leave_round,
    search_of,
    stop_looking,
    tag_along,
    wait_for_round,
)
from pipelines.training.swarm_optimizer.progress_tracking import SwarmProgressTracker
from pipelines.training.swarm_optimizer.round_policy import (
    GradientSource,
    RoundPolicy,
    Search,
    epoch_of_call,
    is_incomplete,
)
from pipelines.training.swarm_optimizer.state_averaging_calls import StateAveragingCalls

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class EpochParts:
    """The parts of a training peer involved in an epoch's end, and their results."""

    run: TrainingRun
    policy: RoundPolicy
    tracker: SwarmProgressTracker
    """Replaced after a pause."""

    state: SwarmStateAverager
    gradients: SwarmGradientAverager
    gathering: Gathering
    calls: StateAveragingCalls
    records: SwarmRecords
    transfer: StateTransfer
    round_times: RoundTimes
    acquaintances: Acquaintances
    scheduled: StepControl | None = None
    """The gradient round in matchmaking or in progress."""

    has_missed_round: bool = False
    """Whether the others have had a round that this peer missed; it must download their state."""

    num_incomplete_rounds: int = 0
    """Gradient rounds that failed or averaged too small a share, at this peer."""

    num_incomplete_state_rounds: int = 0
    """Incomplete rounds of the state averager for which others were already called."""

    @property
    def epoch(self) -> int:
        """The epoch whose gradients are gathered here."""
        return self.state.local_epoch

    @property
    def global_epoch(self) -> int:
        """The swarm's epoch, as confirmed by other peers."""
        return self.tracker.global_epoch


def end_epoch(parts: EpochParts) -> None:
    """Average gradients with the others, step, and average the state if it is due: the swarm has enough samples.

    Raises:
        MissedRoundError: the others have had the round without this peer, which must download their state.
    """
    run, state, tracker = parts.run, parts.state, parts.tracker
    if run.delay_gradient_averaging:
        finish_delayed_round(parts)
    with tracker.pause_updates():
        if run.delay_optimizer_step:
            state.step(wait_for_delayed_updates=True)
        parts.gathering.finish(parts.epoch)
        control, before_step = begin_round(parts), None
        if control is None:
            parts.gradients.load_accumulators_into_averager_()  # this peer's own gradient
        elif run.delay_gradient_averaging:
            before_step = partial(finish_round, parts, control)
        else:
            finish_round(parts, control)
        averages_state = parts.policy.averages_state(
            max(parts.epoch + 1, parts.global_epoch),
            tracker.global_progress.num_peers,
            parts.calls.epochs,
            is_averaging=state.averaging_in_progress,
        )
        # The optimizer reads the averager's tensors: their current values, or those after `before_step`.
        state.step(
            increment_epoch=True,
            wait_for_trigger=before_step,
            optimizer_step=True,
            delay_optimizer_step=run.delay_optimizer_step,
            averaging_round=averages_state,
            delay_averaging=True,
            averaging_opts=dict(timeout=parts.round_times.timeout) if averages_state else None,
        )
        tracker.update_epoch(new_epoch=parts.epoch)
        parts.gradients.reset_accumulated_grads_()


def look_for_group(parts: EpochParts) -> None:
    """Start matchmaking for the next round if the epoch is about to end; then also learn what else is due."""
    if parts.policy.delays_averaging:
        parts.gradients.epoch_to_average = parts.epoch
    search = search_of(parts.scheduled)
    if search is Search.IN_ROUND:
        return
    if parts.policy.begins_search(search, parts.tracker.estimated_next_update_time - get_dht_time()):
        parts.scheduled = parts.gradients.schedule_step(timeout=parts.round_times.timeout)
    if parts.scheduled is not None:
        judge_state_rounds(parts)
        parts.calls.read(parts.epoch)


def begin_round(parts: EpochParts) -> StepControl | None:
    """Send this peer's gradient into a round; return None if there is no round."""
    parts.gradients.expect_samples(parts.tracker.plausible_samples())
    search = search_of(parts.scheduled)
    source = parts.policy.gradient_source(search, parts.tracker.global_progress.num_peers)
    if source is GradientSource.ROUND:
        try:
            parts.scheduled = parts.gradients.step(control=parts.scheduled, wait=False)
            return parts.scheduled
        except Exception:  # whatever the error, this peer has its own gradient
            logger.exception("A round of averaging could not start.")
            if parts.scheduled is not None and not parts.scheduled.done():
                tag_along(parts.scheduled, parts.round_times.timeout)
    elif search is Search.OPEN and parts.scheduled is not None:
        stop_looking(parts.scheduled)  # there are no other peers
    parts.scheduled = None
    return None


def finish_round(parts: EpochParts, control: StepControl) -> None:
    """Wait for the round; if it fails, step along this peer's own gradient, averaged as far as the round got.

    hivemind would step along its accumulators, which are empty by then: a null step. With delayed averaging, this
    runs in a thread while gradients of the next epoch are gathered.

    Raises:
        MissedRoundError: the others have had it, and this peer has not.
    """
    before = parts.gradients.last_round
    try:
        wait_for_round(control, parts.round_times.timeout, partial(have_others_moved_on, parts))
    except MissedRoundError:
        parts.has_missed_round = True
        raise
    except (Exception, asyncio.CancelledError) as error:
        if parts.has_missed_round or have_others_moved_on(parts):
            parts.has_missed_round = True
            raise MissedRoundError(f"A round of averaging failed here, but not elsewhere: {error!r}.") from error
        logger.warning("A round of averaging failed; this peer continues with its own gradient: %r", error)
    parts.gradients.notify_used_averaged_gradients()
    if is_incomplete(before, parts.gradients.last_round):
        call_everybody(parts, counts_here=True)


def finish_delayed_round(parts: EpochParts) -> None:
    """Wait until the last epoch's round is over, here and at the other peers; hivemind waits only for a while.

    Raises:
        MissedRoundError: the others have had it, and this peer has not.
    """
    concurrent.futures.wait(parts.state.pending_updates)  # each has its own time-outs
    if parts.scheduled is not None and parts.scheduled.triggered:
        leave(parts)
    if parts.has_missed_round:
        raise MissedRoundError("The others have averaged the last epoch's gradients without this peer.")
    look_for_group(parts)


def leave(parts: EpochParts) -> None:
    """Leave the gradient round in matchmaking or in progress."""
    if parts.scheduled is not None:
        leave_round(parts.scheduled, partial(tag_along, seconds=parts.round_times.timeout))
        parts.scheduled = None


def have_others_moved_on(parts: EpochParts) -> bool:
    """Query the DHT, which the tracker does not do during a round.

    With delayed averaging, the others' epochs show it only after the next one, but their states show it at once.
    """
    if parts.tracker.believed_epoch(parts.records.progress()) > parts.epoch:
        return True
    return parts.run.delay_gradient_averaging and parts.transfer.newest_epoch() >= parts.epoch


def judge_state_rounds(parts: EpochParts) -> None:
    """Call everybody again if averaging the state failed: it is not retried within an epoch."""
    num_incomplete = parts.state.last_round.num_incomplete_rounds
    if num_incomplete > parts.num_incomplete_state_rounds:
        parts.num_incomplete_state_rounds = num_incomplete
        call_everybody(parts, counts_here=False)


def call_everybody(parts: EpochParts, *, counts_here: bool) -> None:
    """Have all peers average the state soon; `counts_here`: this peer's own gradient round failed."""
    parts.num_incomplete_rounds += counts_here
    parts.calls.call(epoch_of_call(parts.epoch, parts.global_epoch))
