"""`hivemind.Optimizer` for a training run: our LAMB and averagers, a guard against bad gradients, bounded loading."""

import asyncio
import logging
from functools import partial
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import StepControl

from pipelines.swarm.records import SwarmRecords
from pipelines.training.averaging.group.time_limits import RoundTimes
from pipelines.training.averaging.wire.codec import averaging_compression, check_codec
from pipelines.training.gradients.computation import gradients_are_finite
from pipelines.training.optimizers.choice import gradient_momentum, optimizer_parts
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.averager import SwarmStateAverager
from pipelines.training.state.transfer import ShowProgress, StateTransfer
from pipelines.training.swarm_optimizer.delayed_rounds import DelayedAveraging
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.swarm_optimizer.hivemind_options import (
    averager_options,
    chunk_timeout,
    make_state_averager,
    tracker_options,
    transfer_limits,
    upload_options,
)
from pipelines.training.swarm_optimizer.incomplete_rounds import IncompleteRoundRecovery
from pipelines.training.swarm_optimizer.missed_rounds import MissedRoundError, leave_round, wait_for_round
from pipelines.training.swarm_optimizer.progress_tracking import SwarmProgressTracker, witnessed_epoch

logger = logging.getLogger(__name__)

CALL_LIFETIME_IN_TIMEOUTS = 5
"""How long a call for averaging the state can be read; two epochs must pass, which are as long as the swarm is slow."""

NUM_LOADS_TO_CATCH_UP = 2
"""States that a peer takes over in a row while the swarm goes on before it takes part one epoch behind."""

MAX_STALENESS = 1
"""Epochs by which a gradient may be late: the delay that the paper's delayed updates have, too (section 3.2)."""

MAX_FAILED_LOADS = 5


class OutOfStepError(ValueError):
    """This peer cannot catch up with the swarm."""


class SwarmOptimizer(DelayedAveraging, IncompleteRoundRecovery, hivemind.Optimizer):
    """Gathers gradients until the swarm has `target_batch_size` samples, averages them and steps.

    `step(batch_size=...)` returns at once or, at the end of an epoch, after the averaging round.
    """

    def __init__(
        self,
        *,
        run: TrainingRun,
        dht: hivemind.DHT,
        model: torch.nn.Module,
        records: SwarmRecords,
        bandwidth_limit_mbit: float | None = None,
        gradient_averager_type: type[SwarmGradientAverager] = SwarmGradientAverager,
        verbose: bool = False,
    ) -> None:
        compression = averaging_compression(run)
        check_codec(compression)
        self.run = run
        self.records = records
        self.call_lifetime_seconds = run.averaging_timeout_seconds * CALL_LIFETIME_IN_TIMEOUTS
        self.num_refused_gradients = 0
        self.last_gradient_was_used = False
        self.num_failed_loads = 0
        self._round_times = RoundTimes(
            overhead=2 * run.matchmaking_seconds,
            lowest=run.matchmaking_seconds + 2 * chunk_timeout(run),
            highest=run.averaging_timeout_seconds,
        )
        options = dict(averager_options(run), **upload_options(bandwidth_limit_mbit))
        super().__init__(
            dht=dht,
            run_id=run.swarm_id,
            target_batch_size=run.samples_per_epoch,
            **optimizer_parts(run, model),
            matchmaking_time=run.matchmaking_seconds,
            averaging_timeout=run.averaging_timeout_seconds,
            allreduce_timeout=run.averaging_timeout_seconds / 2,
            next_chunk_timeout=chunk_timeout(run),
            delay_optimizer_step=run.delay_optimizer_step,
            delay_grad_averaging=run.delay_gradient_averaging,
            delay_state_averaging=True,
            offload_optimizer=True,
            average_state_every=run.average_state_every,
            client_mode=dht.client_mode,
            grad_compression=compression,
            state_averaging_compression=compression,
            grad_averager_factory=partial(
                gradient_averager_type,
                allow_state_sharing=False,
                keeps_own_gradient=True,
                gradient_momentum=gradient_momentum(run),
                admission=records.admissions.admission,
                **options,
            ),
            averager_opts=dict(options, allow_state_sharing=False),
            tracker_opts=tracker_options(run),
            verbose=verbose,
        )
        self.state_transfer = StateTransfer(self.state_averager, records, transfer_limits(run))

    def _make_state_averager(self, **kwargs: Any) -> SwarmStateAverager:
        return make_state_averager(
            SwarmStateAverager,
            dht=self.dht,
            admission=self.records.admissions.admission,
            run_id=self.run_id,
            matchmaking_seconds=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            next_chunk_timeout=self.next_chunk_timeout,
            shutdown_timeout=self.shutdown_timeout,
            status_loglevel=self.status_loglevel,
            client_mode=self.client_mode,
            **kwargs,
        )

    def _make_progress_tracker(self, target_batch_size: int, **kwargs: Any) -> SwarmProgressTracker:
        self._tracker_arguments = dict(kwargs, target_batch_size=target_batch_size)
        tracker = SwarmProgressTracker(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            admissions=self.records.admissions,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            start=True,
            **kwargs,
        )
        tracker.seconds_to_come = self.matchmaking_time
        return tracker

    @property
    def bytes_sent(self) -> int:
        """Payload of all rounds so far: gradients, or progress of local steps, and averages of the parameters."""
        return self.grad_averager.last_round.bytes_sent + self.state_averager.last_round.bytes_sent

    def share_state(self) -> None:
        """Let newcomers download this peer's state; call it once this peer is known to be in step with the swarm."""
        self.state_transfer.share()

    def _check_and_accumulate_gradients(self, batch_size: int, grad_scaler: Any) -> bool:
        """Add the local gradient, unless a value is not finite: then it is dropped and counted, the rest is kept."""
        if not gradients_are_finite(p.grad for p in self.grad_averager.parameters if p.grad is not None):
            self.num_refused_gradients += 1
            logger.warning("A local gradient was not finite and was dropped (%d so far).", self.num_refused_gradients)
            self.last_gradient_was_used = False
            return False
        self.last_gradient_was_used = self._accumulate(batch_size, grad_scaler)
        return self.last_gradient_was_used

    def _accumulate(self, batch_size: int, grad_scaler: Any) -> bool:
        return super()._check_and_accumulate_gradients(batch_size, grad_scaler)

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl) -> None:
        """Wait for the round; if it fails, step along this peer's own gradient, averaged as far as the round came.

        hivemind would step along its accumulators, which are empty by then: a step along nothing. Where averaging is
        delayed, this is executed in a thread, while gradients of the next epoch are gathered.
        """
        before = self.grad_averager.last_round
        try:
            wait_for_round(maybe_step_control, self.averaging_timeout, self._have_others_moved_on)
        except MissedRoundError:
            self.has_missed_a_round = True
            raise
        except (Exception, asyncio.CancelledError) as error:
            if self.has_missed_a_round or self._have_others_moved_on():
                self.has_missed_a_round = True
                raise MissedRoundError(f"A round of averaging failed here, but not elsewhere: {error!r}.") from error
            logger.warning("A round of averaging failed; this peer goes on with its own gradient: %r", error)
        self._load_averaged_gradients_into_optimizer_()
        self.judge_round(before, self.grad_averager.last_round)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """See `hivemind.Optimizer.step`; afterwards `last_gradient_was_used` tells whether the gradient counts."""
        self.last_gradient_was_used = False
        newest = self.grad_averager.last_round
        self._round_times.note(newest.num_rounds, newest.seconds)
        self.averaging_timeout = self._round_times.timeout
        try:
            return super().step(*args, **kwargs)
        except MissedRoundError as error:
            logger.info("%s It takes over their state.", error)
            # What was sent to others may be in their average already.
            was_sent = self.scheduled_grads is not None and self.scheduled_grads.began_allreduce
            self.scheduled_grads = None
            self.load_state_from_peers(keep_gradient=not was_sent)
            return None

    def suspend(self) -> int:
        """Stop taking part: no longer counted by others, in no round; return the samples of this epoch that are lost.

        The state stays in the DHT and can be downloaded. `resume` ends this.
        """
        num_lost = self.tracker.local_progress.samples_accumulated
        self.state_averager.step(wait_for_delayed_updates=True)
        for scheduled in (self.scheduled_grads, self.scheduled_state):
            if scheduled is not None:
                leave_round(scheduled, self._tag_along_with_zero_weight)
        self.scheduled_grads = self.scheduled_state = None
        self.begin_epoch()
        self.tracker.shutdown(self.shutdown_timeout)
        return num_lost

    def resume(self) -> None:
        """Take part again, with the swarm's newest state if it has gone on in the meantime."""
        self.tracker = self._make_progress_tracker(**self._tracker_arguments)
        if self.tracker.global_epoch > self.local_epoch:
            self.load_state_from_peers()

    def load_state_from_peers(self, show: ShowProgress | None = None, *, keep_gradient: bool = True, **_: Any) -> bool:
        """Take over the state that most signed trainers name; return whether this peer is in step with the swarm then.

        Ends in any case; the caller may try again or use a checkpoint. With `keep_gradient` a gradient that is late by
        one epoch counts in the next round.

        Raises:
            OutOfStepError: this has failed again and again.
        """
        if self.scheduled_grads is not None:
            leave_round(self.scheduled_grads, self._tag_along_with_zero_weight)
            self.scheduled_grads = None
        self.state_averager.step(wait_for_delayed_updates=True)
        first_epoch, first_state = self.local_epoch, self.state_averager.state_epoch
        was_outvoted = self.state_transfer.is_outvoted
        for _ in range(NUM_LOADS_TO_CATCH_UP):
            at_least = self.state_averager.state_epoch + (0 if self.state_transfer.is_outvoted else 1)
            # Others may have told that they have it before the tracker looks again, and before they offer it.
            taken = self.state_transfer.fetch(
                at_least=at_least, wanted=max(at_least, self.tracker.global_epoch), show=show
            )
            if taken is None or self.local_epoch >= self.tracker.global_epoch:
                break
        with self.tracker.pause_updates():
            if self.tracker.global_epoch - 1 <= self.local_epoch < self.tracker.global_epoch:
                # One step is missing; the state keeps its epoch in what this peer signs, and is not taken for newer.
                self.state_averager.local_epoch = self.tracker.global_epoch
            is_fresh = self.local_epoch <= first_epoch + MAX_STALENESS
            self.begin_epoch(keep_gradient=keep_gradient and is_fresh and not was_outvoted)
        nobody_had_it = self.has_missed_a_round and self.state_averager.state_epoch == first_state
        if nobody_had_it or self.stays_behind():
            self._call_everybody(is_own=False)  # this peer's parameters are apart until then
        self.has_missed_a_round = False
        self._count_failed_loads()
        return self.local_epoch >= self.tracker.global_epoch

    def _count_failed_loads(self) -> None:
        is_behind = self.local_epoch < self.tracker.global_epoch - 1
        self.num_failed_loads = self.num_failed_loads + 1 if is_behind else 0
        if self.num_failed_loads >= MAX_FAILED_LOADS:
            raise OutOfStepError(
                f"This peer is at epoch {self.local_epoch}, the swarm at {self.tracker.global_epoch}, and "
                f"{self.num_failed_loads} downloads of its state in a row did not help: they last longer than an epoch "
                "does, or no donor is usable. Try again later, or with a faster link."
            )

    def _should_load_state_from_peers(self) -> bool:
        """Return whether the others have ended an epoch that this peer has not, and without it, or have outvoted it.

        hivemind would look for a group for the old epoch, find one when the others end the next, and stay an epoch
        behind with few samples each time. Where averaging is delayed, peers are ahead while their round is going on.
        """
        num_ahead = 1 if self.run.delay_gradient_averaging else 0
        is_behind = self.local_epoch + num_ahead < self.tracker.global_epoch
        return is_behind or self.has_missed_a_round or self.state_transfer.is_outvoted

    def _have_others_moved_on(self) -> bool:
        """Look into the DHT, which the tracker does not while a round goes on.

        Where averaging is delayed, their epochs say so only when the next one is over, but their states say it at once.
        """
        own = self.dht.peer_id.to_bytes()
        others = [peer.epoch for peer in self.records.progress() if peer.peer_id != own and not peer.client_mode]
        if witnessed_epoch(others) > self.local_epoch:
            return True
        return self.run.delay_gradient_averaging and self.state_transfer.newest_epoch() >= self.local_epoch

    def shutdown(self) -> None:
        """Stop handing out the state, and all processes of this peer."""
        self.state_transfer.close()
        super().shutdown()

    def begin_epoch(self, *, keep_gradient: bool = False) -> None:
        """Forget gradients gathered so far and report the local epoch; after any change of the state from outside."""
        if keep_gradient:
            self.grad_averager.take_back()
        else:
            self.grad_averager.forget_gradients()
        num_samples = self.grad_averager.local_samples_accumulated
        self.tracker.report_local_progress(local_epoch=self.local_epoch, samples_accumulated=num_samples)
