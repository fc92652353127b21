"""Gradients with the number of threads that is fastest on this machine at present."""

import time
from collections.abc import Callable, Sequence

import torch

from pipelines.core.gradients.computation import BatchLoss, ComputeGradient
from pipelines.core.run.task import Batch
from pipelines.features.local_computation.thread_choice import ThreadChoice


class AdaptiveThreads:
    """Computes gradients and measures the threads by their steps."""

    def __init__(
        self, backward: ComputeGradient, numbers: Sequence[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backward, self._choice, self._clock = backward, ThreadChoice(numbers), clock

    def __call__(self, batch: Batch, factor: float) -> BatchLoss:
        """Compute a gradient as `GradientComputation.backward` does."""
        if torch.get_num_threads() != self._choice.num_threads:
            torch.set_num_threads(self._choice.num_threads)
        started = self._clock()
        loss = self._backward(batch, factor)
        self._choice.note(self._clock() - started, loss.weight)
        return loss
