"""The held-out loss of the state that an auxiliary peer holds."""

import logging
import threading
import time
from collections.abc import Sequence

import torch

from pipelines.core.run.task import Batch, TrainingTask, mean_loss
from pipelines.features.held_out_loss import measure_held_out_loss, weights_digest
from pipelines.features.publishing.metrics.run_metrics import RunMetrics
from pipelines.features.publishing.metrics.trackers import Trackers

logger = logging.getLogger(__name__)


class HeldOutEvaluation:
    """Computes the loss on held-out samples, read from the Hub once."""

    def __init__(self, task: TrainingTask, metrics: RunMetrics, trackers: Trackers, stopping: threading.Event) -> None:
        self._task, self._metrics, self._trackers, self._stopping = task, metrics, trackers, stopping
        self._batches: Sequence[Batch] | None = None

    def __call__(self, epoch: int, model: torch.nn.Module) -> None:
        """Record the loss of an epoch's model in the metrics and the trackers."""
        started, batches = time.monotonic(), self._held_out()
        if (loss := measure_held_out_loss(self._task, model, batches, self._stopping.is_set)) is None:
            return
        seconds, digest = time.monotonic() - started, weights_digest(model)
        self._metrics.add_evaluation(loss, epoch=epoch, weights=digest, seconds=seconds, now=time.time())
        self._trackers.log_evaluation(epoch, loss.mean)

    def loss_of(self, model: torch.nn.Module) -> float | None:
        """Return the held-out loss of a model; None if it cannot be computed now."""
        try:
            with torch.no_grad():
                return mean_loss(self._task, model, self._held_out(), self._stopping.is_set)
        except (OSError, ValueError) as error:  # the Hub is down
            logger.warning("The held-out loss cannot be computed: %s", error)
            return None

    def _held_out(self) -> Sequence[Batch]:
        if self._batches is None:
            self._batches = self._task.held_out_batches()
            if not self._batches:
                logger.warning("The run holds out nothing of %s: no evaluation.", self._task.run.dataset_repository)
        return self._batches
