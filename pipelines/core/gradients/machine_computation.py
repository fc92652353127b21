"""What a peer asks of the machine that computes for it: as its options say, without measuring what suits it."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Self

import torch

from pipelines.core.gradients.computation import (
    BatchLoss,
    ComputeGradient,
    GradientComputation,
    UsableGradients,
    is_worth_compiling,
    resolve_precision,
)
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.task import Batch, NamedBatch, TrainingTask


class MachineComputation:
    """Computes gradients of a task's model on one device. Use as a context manager, once hivemind has forked.

    `place` is where other devices would find the run: its repository, or a folder.
    """

    def __init__(self, task: TrainingTask, compute: ComputeOptions, place: str = "") -> None:
        self._task, self._compute, self._place = task, compute, place
        if compute.cpu_threads is not None:
            torch.set_num_threads(compute.cpu_threads)
        self.model = task.new_model().to(compute.device)
        self._precision = resolve_precision(compute.precision, compute.device)
        self._is_compiled = is_worth_compiling(compute.compile, compute.device, task)
        self._computation = GradientComputation(
            task, self.model, device=compute.device, precision=self._precision, compiled=self._is_compiled
        )

    def __enter__(self) -> Self:
        self._gradients = UsableGradients(self._backward(), self.model.parameters(), precision=self._precision)
        return self

    def __exit__(self, *exception: object) -> None: ...

    def description(self) -> str:
        """Return what others read of the device: at most 64 characters."""
        return torch.device(self._compute.device).type.upper()

    @property
    def micro_batch_size(self) -> int:
        """Samples per local step and device."""
        return self._compute.micro_batch_size or 1

    def batch_size(self) -> int:
        """Return the samples of a local step on all devices."""
        return self.micro_batch_size

    def choose_micro_batch(self) -> None:
        """Find a size for micro-batches, if none is configured, before the training starts."""

    def compute(self, batch: Batch) -> BatchLoss | None:
        """Compute the mean gradient of a batch into the parameters' `.grad`; None: it overflowed and is unusable."""
        if isinstance(batch, NamedBatch):
            torch.manual_seed(batch.seed(self._task.run))
        return self._gradients.compute(batch)

    def note_step(
        self,
        seconds: float,
        num_samples: int,
        *,
        may_test: Callable[[], bool] = lambda: True,
        around_a_test: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ) -> None:
        """Note a step; test the machine, within `around_a_test`, if that is due and may be done now."""

    def rest_after(self, seconds: float) -> float:
        """Return how many seconds the device rests after so many of computing."""
        return seconds * (100 / self._compute.max_load - 1)

    def make_room(self, tensors: Iterable[torch.Tensor]) -> Callable[[], None]:
        """Leave the device's memory to others while the peer rests; return what brings its tensors back."""
        return lambda: None

    def _backward(self) -> ComputeGradient:
        return self._computation.backward


NewComputation = Callable[[TrainingTask, ComputeOptions, str], MachineComputation]
"""Makes what computes, from a task, its options and the run's place."""
