"""The swarm's optimizer: gathers gradients until the swarm has enough samples, and keeps its peer in step."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from hub_tools.processes.child_watch import ChildWatch
from pipelines.core.averaging.figures import AveragingRound
from pipelines.core.epoch.epoch_end import EpochContext, end_epoch, leave, look_for_group
from pipelines.core.epoch.missed_rounds import MissedRoundError
from pipelines.core.epoch.progress_tracking import SwarmProgressTracker
from pipelines.core.epoch.round_policy import (
    MAX_FAILED_LOADS,
    Setback,
    after_setback,
    epoch_to_adopt,
    keeps_gradient,
)
from pipelines.core.gradients.computation import gradients_are_finite
from pipelines.core.run.task import NamedBatch
from pipelines.core.state.transfer import ShowProgress

logger = logging.getLogger(__name__)

NUM_LOADS_TO_CATCH_UP = 2
"""State downloads in a row, overtaken by the swarm, after which a peer takes part one epoch behind."""

SECONDS_TO_SHUT_DOWN = 5.0


class OutOfStepError(ValueError):
    """This peer cannot catch up with the swarm, or computes something else."""


@dataclass(frozen=True, kw_only=True)
class OptimizerProgress:
    """A peer's progress, and the results of its rounds."""

    epoch: int
    num_peers: int
    """Peers training now, including this one."""

    samples_per_second: float
    """This peer's speed over the last micro-batches."""

    swarm_samples_per_second: float
    """What all peers together say of theirs, this one included; see `bounded_speeds`."""

    num_gathered: int
    """Samples whose gradients have been summed here for the coming round."""

    has_begun_round: bool
    """Whether a gradient round that this peer has sent to may still be in progress."""

    gradient_round: AveragingRound
    """Figures of the last gradient round and the totals."""

    bytes_sent: int
    """Payload of all rounds so far: gradients, or progress of local steps, and averages of others' parts."""

    num_refused_gradients: int
    """Local gradients that were dropped because a value was not finite."""

    num_incomplete_rounds: int
    """Gradient rounds that failed or averaged too small a share, at this peer."""

    @property
    def share_averaged(self) -> float:
        """Share of the vector for which the last gradient round returned an average, in [0, 1]."""
        return self.gradient_round.share_averaged


class SwarmOptimizer:
    """Gathers gradients until the swarm has `samples_per_epoch` samples, averages them and steps.

    `step(batch_size=...)` returns at once or, at the end of an epoch, after its round, if no thread waits for that.
    `make_optimizer` builds the parts; call `shutdown` at the end.
    """

    def __init__(
        self, parts: EpochContext, new_tracker: Callable[[], SwarmProgressTracker], children: ChildWatch
    ) -> None:
        """`new_tracker` starts another tracker, after a pause; `children` watches the averager's process."""
        self._parts, self._new_tracker, self._children = parts, new_tracker, children
        self.run = parts.run
        self.state, self.averager = parts.state, parts.averager
        self.state_transfer = parts.transfer
        self.num_refused_gradients = self.num_failed_loads = 0
        self.last_gradient_was_used = False

    @property
    def tracker(self) -> SwarmProgressTracker:
        """Counts the swarm's samples; replaced after a pause."""
        return self._parts.tracker

    @property
    def local_epoch(self) -> int:
        """The epoch whose gradients are gathered here."""
        return self._parts.epoch

    @property
    def is_over(self) -> bool:
        """Whether the run has reached its last epoch here."""
        return self.local_epoch >= self.run.num_epochs

    def progress(self) -> OptimizerProgress:
        """Return this peer's progress."""
        scheduled, newest = self._parts.scheduled, self.averager.last_round
        return OptimizerProgress(
            epoch=self.local_epoch,
            num_peers=self.tracker.num_peers,
            samples_per_second=self.tracker.performance_ema.samples_per_second,
            swarm_samples_per_second=self.tracker.swarm_samples_per_second,
            num_gathered=self._parts.gathering.num_samples,
            has_begun_round=scheduled is not None and scheduled.triggered,
            gradient_round=newest,
            bytes_sent=newest.bytes_sent,
            num_refused_gradients=self.num_refused_gradients,
            num_incomplete_rounds=self._parts.num_incomplete_rounds,
        )

    def share_state(self) -> None:
        """Let newcomers download this peer's state; call it once this peer is known to be in step with the swarm.

        The peer's speed is measured from here on: others believe a gradient's weight as far as the speed explains it.
        """
        self.state_transfer.share()
        self.tracker.performance_ema.reset_timer()

    def zero_grad(self) -> None:
        """Clear the model's gradients; what was gathered is kept."""
        for parameter in self.state.main_parameters:
            parameter.grad = None

    def step(self, batch_size: int, batch: NamedBatch | None = None) -> None:
        """Count the model's gradient, a mean over this many samples; end the epoch if the swarm has enough.

        `batch` is what the gradient was computed on, if that has a name.

        Afterwards `last_gradient_was_used` tells whether the gradient counts: not if a value is not finite, nor if it
        was computed with an outdated state; the swarm's newer state is downloaded then.
        """
        self.last_gradient_was_used = False
        model_epoch = self.state.model_epoch  # of the parameters that the gradient belongs to
        self._note_progress()
        if self.is_out_of_step:
            self.load_state_from_peers()
            self.drop(batch)
            return
        gradients = [parameter.grad for parameter in self.state.main_parameters]
        if not gradients_are_finite(gradient for gradient in gradients if gradient is not None):
            self.num_refused_gradients += 1
            logger.warning("A local gradient was not finite and was dropped (%d so far).", self.num_refused_gradients)
            self.drop(batch)
            return
        if batch is not None:
            for listener in self._parts.listeners:
                listener.gradient_counted(batch, gradients, batch_size, model_epoch)
        self.tracker.report_local_progress(self.local_epoch, self._parts.gathering.add(batch_size, self.local_epoch))
        self.last_gradient_was_used = True
        look_for_group(self._parts)
        if self.tracker.ready_to_update_epoch:
            self._end_epoch()

    @property
    def is_awaited(self) -> bool:
        """Whether the swarm has enough samples, so that the others wait for this peer's next step."""
        return self.tracker.ready_to_update_epoch

    def drop(self, batch: NamedBatch | None) -> None:
        """Note that a batch's records are in no gradient: they are read again."""
        if batch is not None:
            for listener in self._parts.listeners:
                listener.gradient_dropped(batch)

    def listen(self) -> None:
        """Take part in the swarm's rounds without gradients of one's own; call it often.

        Afterwards `is_out_of_step` tells whether a round was missed: only the swarm's state helps then.
        """
        self._note_progress()
        # After the last epoch no round comes, whatever others say that they have gathered.
        if self.is_over or self.is_out_of_step or self.tracker.num_peers <= 1:  # nobody but this peer
            return
        look_for_group(self._parts)
        if self.tracker.ready_to_update_epoch:
            try:
                end_epoch(self._parts)
            except MissedRoundError as error:
                logger.warning("%s", error)
                self._parts.scheduled = None

    def look_for_rounds_again(self) -> None:
        """Take part again after a missed round: nobody whom this peer believes has a later state than its own."""
        if self._parts.has_missed_round:
            leave(self._parts)
            self.wait_for_updates()
            # With delayed averaging its epoch may be ahead of its state, which lacks that round's step.
            self.state.take_part_in(self.state.state_epoch)
            self._parts.has_missed_round = False
            self.begin_epoch()

    def _note_progress(self) -> None:
        newest = self.averager.last_round
        self._parts.round_times.note(newest.num_rounds, newest.seconds)
        self._parts.acquaintances.note_round(newest.num_rounds, newest.senders)
        self._parts.records.keep_places(self._parts.acquaintances.names)
        self.state.apply_updates()  # those that have ended in the background

    @property
    def is_out_of_step(self) -> bool:
        """Whether the others have gone on without this peer, or have another state."""
        return self._parts.policy.takes_state_over(
            self.local_epoch,
            self.tracker.global_epoch,
            has_missed_round=self._parts.has_missed_round,
            outvoted=self.state_transfer.is_outvoted,
        )

    def _end_epoch(self) -> None:
        try:
            end_epoch(self._parts)
        except MissedRoundError as error:
            logger.warning("%s It downloads their state.", error)
            missed, self._parts.scheduled = self._parts.scheduled, None
            # What was sent to others may already be in their average.
            was_sent = missed is not None and missed.began_allreduce
            self.load_state_from_peers(keep_gradient=not was_sent)

    def wait_for_updates(self) -> None:
        """Wait for background steps and rounds, and apply their results."""
        self.state.wait_for_updates(self.run.averaging_timeout_seconds / 2)

    def suspend(self) -> int:
        """Suspend: leave the swarm's count and its rounds; return the samples of this epoch that are lost.

        The state stays in the DHT and can be downloaded. `resume` ends this.
        """
        num_lost = self.tracker.local_progress.samples_accumulated
        self.wait_for_updates()
        leave(self._parts)
        self.begin_epoch()
        self.tracker.shutdown(SECONDS_TO_SHUT_DOWN)
        return num_lost

    def own_tensors(self) -> Iterator[torch.Tensor]:
        """Return all tensors that a pause can move off the device: parameters, gradients, statistics."""
        yield from self.state.own_tensors()
        yield from self._parts.gathering.own_tensors()

    def resume(self) -> None:
        """Take part again, with the swarm's newest state if it has moved on in the meantime."""
        self._parts.tracker = self._new_tracker()
        if self.tracker.global_epoch > self.local_epoch:
            self.load_state_from_peers()

    def load_state_from_peers(self, show: ShowProgress | None = None, *, keep_gradient: bool = True) -> bool:
        """Download the state that most signed trainers name; return whether this peer is then in step with the swarm.

        Always returns; the caller may retry or use a checkpoint. With `keep_gradient` a gradient that is late by
        one epoch counts in the next round.

        Raises:
            OutOfStepError: this has failed repeatedly.
        """
        parts, state = self._parts, self.state
        leave(parts)
        self.wait_for_updates()
        first_epoch = self.local_epoch
        was_outvoted = self.state_transfer.is_outvoted
        believes_keys = parts.acquaintances.believe_strangers and not parts.records.admissions.counts_users
        if not (self.state_transfer.fits or believes_keys):
            raise OutOfStepError(
                f"{self.state_transfer.num_misfits} times in a row this machine's step led to another state than that "
                "of the others, which it had downloaded before. Its processor or its version of torch does not fit: "
                "use the versions in the run's required_versions, or another machine."
            )
        self._fetch_state(show)
        with self.tracker.pause_updates():
            state.take_part_in(epoch_to_adopt(self.local_epoch, self.tracker.global_epoch))
            is_of_use = keeps_gradient(first_epoch, self.local_epoch, outvoted=was_outvoted)
            self.begin_epoch(keep_gradient=keep_gradient and is_of_use)
        parts.has_missed_round = False
        self._count_failed_loads()
        return self.local_epoch >= self.tracker.global_epoch

    def _fetch_state(self, show: ShowProgress | None) -> None:
        for _ in range(NUM_LOADS_TO_CATCH_UP):
            # An anchor that returns to an earlier state outvotes this peer, too.
            at_least = 0 if self.state_transfer.is_outvoted else self.state.state_epoch + 1
            # Others may have announced it before the tracker polls again, and before they offer it.
            taken = self.state_transfer.fetch(
                at_least=at_least, wanted=max(at_least, self.tracker.global_epoch), show=show
            )
            if taken is None or self.local_epoch >= self.tracker.global_epoch:
                return

    def _count_failed_loads(self) -> None:
        transfer, is_behind = self.state_transfer, self.local_epoch < self.tracker.global_epoch - 1
        if not (is_behind or transfer.is_outvoted):
            self.num_failed_loads = 0
            return
        self.num_failed_loads += 1
        setback = after_setback(
            self.num_failed_loads,
            is_behind=is_behind,
            was_offered=transfer.was_offered_newer,
            num_witnesses=self.tracker.num_witnesses,
        )
        if setback is Setback.DOUBT:
            self.tracker.doubt()
        if self.num_failed_loads < MAX_FAILED_LOADS:
            return
        self.num_failed_loads = 0
        if setback is Setback.LEAVE:
            raise OutOfStepError(
                f"This peer is at epoch {self.local_epoch}, the swarm at {self.tracker.global_epoch}, and "
                f"{MAX_FAILED_LOADS} downloads of its state in a row did not help: they take longer than "
                "an epoch, or no donor is usable. Try again later, or with a faster link."
            )
        if transfer.is_outvoted:
            transfer.is_outvoted = False
            logger.warning(
                "The others had another state of epoch %d, which nobody serves any more: this peer keeps its own.",
                self.local_epoch,
            )

    def begin_epoch(self, *, keep_gradient: bool = False) -> None:
        """Discard gathered gradients and report the local epoch; after any change of the state from outside."""
        num_samples = self._parts.gathering.restart(keep_gradient=keep_gradient)
        for listener in self._parts.listeners:
            if num_samples:
                listener.gradients_kept()
            else:
                listener.gradients_lost()
        self.tracker.report_local_progress(local_epoch=self.local_epoch, samples_accumulated=num_samples)

    def shutdown(self) -> None:
        """Stop serving the state, and stop all processes of this peer: each, whatever fails before."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.state_transfer.exchange.close)
            last_first.callback(self.averager.shutdown)
            last_first.callback(self._children.forget, self.averager.pid)
            last_first.callback(self.state.close)
            last_first.callback(leave, self._parts)
            last_first.callback(self.wait_for_updates)
            last_first.callback(self.tracker.shutdown, SECONDS_TO_SHUT_DOWN)
            last_first.callback(self.state_transfer.close)
