"""Local steps of which the largest values are sent, over whatever wire."""

import logging
from typing import Protocol

import torch

from pipelines.core.gradients.computation import gradients_are_finite
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState
from pipelines.features.local_steps.local_steps import LocalSteps
from pipelines.features.sparse.codec import SparseCodec
from pipelines.features.sparse.error_feedback import ErrorFeedback
from pipelines.features.sparse.mean import mean

logger = logging.getLogger(__name__)


class ContributionSender(Protocol):
    """Takes a peer's bytes to the others."""

    codec: SparseCodec

    @property
    def share_to_send_again(self) -> float:
        """Which share of the newest contribution counts again: all while it is in no mean, or what that has cut."""

    def contribute(self, content: bytes | None) -> None:
        """Make this the contribution to the next round; None: this peer has nothing to contribute."""


class SparseLocalSteps(LocalSteps):
    """Local steps of which the largest values are averaged; what is not sent yet counts later (error feedback).

    Nothing is lost with a round: what was sent and reached nobody, or only those whose round failed too, is taken back.
    """

    def __init__(
        self, run: TrainingRun, model: torch.nn.Module, contribution: ContributionSender, state: TrainingState
    ) -> None:
        super().__init__(run, model, state)
        self._sparse = contribution
        self._feedback = ErrorFeedback(contribution.codec, run.sparse_error_decay)
        self._was_lost = False

    def finish(self, epoch: int) -> None:
        """See `LocalSteps`: the largest values of the progress, and of what has not been sent before."""
        self._settle()
        super().finish(epoch)
        progress = self._sum.gathered()
        try:
            content = self._feedback.compress(progress, self._samples_sent)
        except ValueError as error:
            logger.error("This peer contributes nothing to a round: %s", error)
            content = None
        self._sparse.contribute(content)
        if content is None:
            for own in progress:
                own.zero_()
            return
        codec = self._sparse.codec
        for own, sent in zip(progress, mean(codec, [codec.decode(content)], [1.0]), strict=True):
            own.copy_(sent)

    def lose_round(self) -> None:
        """See `LocalSteps`: it counts in the next round."""
        self._was_lost = True

    def offer_again(self) -> int:
        """Let what was sent last count in the next round with its samples; return those of the next round so far."""
        self.lose_round()
        self._num_samples += self._samples_sent
        self._samples_sent = 0
        return self._num_samples

    def restart(self, *, keep_gradient: bool) -> int:
        """See `LocalSteps`. Progress that may still count is sent with the next one."""
        self._settle()
        if keep_gradient:
            self._inner.take_pseudo_gradient(self._sum.gathered())
            if gradients_are_finite(self._sum.gathered()):
                for error, progress in zip(self._feedback.error, self._sum.gathered(), strict=True):
                    error.add_(progress)
        return super().restart(keep_gradient=keep_gradient)

    def _take_progress_back(self) -> None:
        self._feedback.restore()

    def _settle(self) -> None:
        """Take back what was sent last and is in no mean: all, or what was cut; twice does no harm."""
        self._feedback.restore(1.0 if self._was_lost else self._sparse.share_to_send_again)
        self._was_lost = False
