"""What a training peer does where gradients are averaged while those of the next epoch are computed: a round at a time.

hivemind looks for the group of the next round while the last one may be going on. After a round that not all had, some
look for the group of that round again and others for that of the next: they form one group, average gradients of
different parameters, and the swarm comes apart (seen in a swarm of four, whose epochs lasted 4 s). Here a peer looks
for one group at a time, and finds only peers that average the gradients of the same epoch.
"""

import concurrent.futures
from typing import Any

from hivemind.averaging.control import StepControl

from pipelines.training.run.training_run import TrainingRun
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.swarm_optimizer.missed_rounds import MissedRoundError, leave_round


class DelayedAveraging:
    """Mixed into `hivemind.Optimizer`, before it. Set `run` before its constructor."""

    run: TrainingRun
    grad_averager: SwarmGradientAverager
    scheduled_grads: StepControl | None
    has_missed_a_round = False
    """Whether the others have had a round that this peer has not; it is to take over their state."""

    def _maybe_schedule_gradient_averaging(self) -> None:
        if self.run.delay_gradient_averaging:
            self.grad_averager.epoch_to_average = self.local_epoch
        former = self.scheduled_grads
        if former is None or not former.triggered or former.done():
            super()._maybe_schedule_gradient_averaging()

    def _update_global_epoch(self, grad_scaler: Any) -> None:
        if self.run.delay_gradient_averaging:
            self._finish_delayed_round()
        super()._update_global_epoch(grad_scaler)

    def _finish_delayed_round(self) -> None:
        """Wait until the last epoch's round is over, here as at the other peers; hivemind waits for a while only.

        Raises:
            MissedRoundError: the others have had it, and this peer has not.
        """
        concurrent.futures.wait(self.state_averager.pending_updates)  # each ends by its own time-outs
        former = self.scheduled_grads
        if former is not None and former.triggered:
            leave_round(former, self._tag_along_with_zero_weight)
            self.scheduled_grads = None
        if self.has_missed_a_round:
            raise MissedRoundError("The others have averaged the last epoch's gradients without this peer.")
        self._maybe_schedule_gradient_averaging()
