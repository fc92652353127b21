"""What a training peer does about rounds that did not average everything: count them, and have parameters averaged.

hivemind takes such a round for a success, and the peers' parameters stay apart until the next regular averaging of the
state. A peer that averages them alone with another that noticed would only put more of them apart, so all are called:
the call is a signed record in the DHT that names the epoch at whose beginning everybody averages the state.
"""

import logging
from typing import Any

from hivemind.utils import MPFuture

from pipelines.swarm.records import SwarmRecords
from pipelines.training.averaging.figures import AveragingRound
from pipelines.training.state.transfer import NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING

logger = logging.getLogger(__name__)

EPOCHS_OF_NOTICE = 2
"""A call in the round that begins epoch e is for epoch e + 1: there is an epoch's time for it to arrive."""


def is_incomplete(before: AveragingRound, after: AveragingRound) -> bool:
    """Return whether what happened between two readings of an averager's figures left parameters apart.

    No round at all, too small a share here, or a sender that was lost: then it is that sender who lacks the part that
    this peer reduced.
    """
    no_round = after.num_rounds == before.num_rounds
    return no_round or after.num_incomplete_rounds > before.num_incomplete_rounds or after.num_senders_lost > 0


class IncompleteRoundRecovery:
    """Mixed into `hivemind.Optimizer`, before it. Set `records` and `call_lifetime_seconds` before its constructor."""

    records: SwarmRecords
    call_lifetime_seconds: float
    num_incomplete_rounds = 0
    """Gradient rounds that failed or averaged too small a share, at this peer."""

    _num_incomplete_state_rounds = 0
    _regular_every = 1
    _calls: frozenset[int] = frozenset()
    _epoch_read = -1
    _answer: MPFuture | None = None

    @property
    def average_state_every(self) -> int:
        """Epochs between averagings of the state: 1 if the coming epoch is one for which peers were called."""
        return 1 if max(self.local_epoch + 1, self.tracker.global_epoch) in self._calls else self._regular_every

    @average_state_every.setter
    def average_state_every(self, epochs: int) -> None:
        self._regular_every = epochs

    def stays_behind(self) -> bool:
        """Return whether this peer's parameters lack a step of the others, and no averaging of the state is near.

        Near: before the peer would take the state over once more because it is outvoted.
        """
        epochs_to_averaging = self._regular_every - self.local_epoch % self._regular_every
        lacks_a_step = self.state_averager.state_epoch < self.local_epoch
        return lacks_a_step and epochs_to_averaging > NUM_OUTVOTED_EPOCHS_BEFORE_RELOADING

    def _maybe_schedule_gradient_averaging(self) -> None:
        super()._maybe_schedule_gradient_averaging()
        if self.scheduled_grads is not None:  # the epoch is about to end: is anything else to be done then?
            self._judge_state_rounds()
            self._read_calls()

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        self.grad_averager.expect_samples(self.tracker.plausible_samples())
        return super()._begin_averaging_gradients(grad_scaler)

    def judge_round(self, before: AveragingRound, after: AveragingRound) -> None:
        """Call everybody if the gradient round between these readings of the averager's figures was incomplete."""
        if is_incomplete(before, after):
            self._call_everybody(is_own=after.num_senders_lost == 0 or after.share_averaged < 1)

    def _judge_state_rounds(self) -> None:
        """Call everybody again if averaging the state did not succeed: it is not tried twice in one epoch."""
        figures = self.state_averager.last_round
        if figures.num_incomplete_rounds > self._num_incomplete_state_rounds:
            self._num_incomplete_state_rounds = figures.num_incomplete_rounds
            self._call_everybody(is_own=False)

    def _call_everybody(self, is_own: bool) -> None:
        self.num_incomplete_rounds += is_own
        epoch = max(self.local_epoch, self.tracker.global_epoch) + EPOCHS_OF_NOTICE
        logger.error("A round was incomplete; all peers are to average their parameters at epoch %d.", epoch)
        self._calls |= {epoch}
        self.records.call_for_state_averaging(epoch, self.call_lifetime_seconds)

    def _read_calls(self) -> None:
        """Read the calls once an epoch, in the background."""
        if self._answer is not None and self._answer.done():
            self._calls |= self.records.state_averaging_calls(self._answer)
            self._answer = None
        if self._epoch_read != self.local_epoch:
            self._epoch_read = self.local_epoch
            self._calls = frozenset(epoch for epoch in self._calls if epoch > self.local_epoch)
            self._answer = self.records.ask_for_state_averaging_calls()
