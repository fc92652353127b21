"""The interface between the engine and what it trains: all that training peers and auxiliary peers know of a task.

The engine averages gradients of any `torch.nn.Module`. The model, its data, its loss and how a checkpoint is used
belong to the task; `pipelines/tasks` has one folder for each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import SpanSource
from pipelines.core.run.spans import Span
from pipelines.core.run.training_run import TrainingRun, stable_seed

Batch = Mapping[str, torch.Tensor]
"""A micro-batch: tensors by name, each with the samples along its first dimension."""


BatchSize = int | Callable[[], int]
"""Samples of a micro-batch, or what says of how many the next one is."""


def size_of_next(batch_size: BatchSize) -> int:
    """Return the samples of the next micro-batch."""
    return batch_size if isinstance(batch_size, int) else batch_size()


class NamedBatch(dict[str, torch.Tensor]):
    """A micro-batch that knows which records of the dataset it was made of.

    `counts` says how many samples are of each span; spans without any hold what is held out. The samples are in the
    order of the spans. Without counts the spans are the records that end in this batch, and do not tell its samples,
    which `label` does.
    """

    def __init__(self, tensors: Batch, spans: Sequence[Span], counts: Sequence[int] = (), label: str = "") -> None:
        super().__init__(tensors)
        self.spans, self.counts, self._label = tuple(spans), tuple(counts), label

    @property
    def can_be_read_again(self) -> bool:
        """Whether the spans and their counts are all that the samples follow from."""
        return bool(self.counts)

    def seed(self, run: TrainingRun) -> int:
        """What is drawn for these samples, wherever they are trained on, follows from this seed."""
        return stable_seed(run.seed, *self.spans, *([self._label] if self._label else []))


class TrainingTask(Protocol):
    """One kind of model on one kind of data. Creating one reads nothing; its parts are read when they are needed."""

    run: TrainingRun

    sample_weight: float
    """Weight of a typical sample in the run's unit: 1 if samples are counted."""

    device_program: str | None
    """Module that computes gradients on a peer's other devices; None: a peer of this task uses one device."""

    def check(self) -> None:
        """Raise ValueError unless data, processor and model match and the model knows all of its settings."""

    def new_model(self) -> torch.nn.Module:
        """Return the model with the run's initial parameters, bit for bit equal on all peers."""

    def compiling_pays(self) -> bool:
        """Tell whether compiled code speeds the model up on a GPU."""

    def batches(
        self, *, batch_size: BatchSize, seed: int, shuffle_buffer_size: int, spans: SpanSource | None = None
    ) -> Iterator[Batch]:
        """Yield micro-batches of `batch_size` samples endlessly: of these spans, if this data has blocks.

        The size only says where the stream of samples is cut, and may change with each. Otherwise, and without spans,
        the order depends only on the seed. Held-out samples are skipped, the same ones on every peer.
        """

    def block_order(self, *labels: object) -> BlockOrder | None:
        """Return the order in which the run's data is leased, with labels another one; None: it has no blocks."""

    def read_again(self, spans: Sequence[Span], num_batches: int) -> Iterator[NamedBatch]:
        """Yield the batches that were made of these spans; ValueError if there cannot have been any.

        See `NamedBatch.can_be_read_again`.
        """

    def held_out_batches(self) -> Sequence[Batch]:
        """Read the samples of the evaluation, the same ones on every peer; empty: the run has no evaluation."""

    def made_up_batch(self, size: int) -> Batch:
        """Return `size` samples of the usual shapes; their values do not matter for memory and time."""

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the summed loss of a batch, a float scalar with its graph, and the weight that it sums over."""


@torch.no_grad()
def mean_loss(
    task: TrainingTask,
    model: torch.nn.Module,
    batches: Sequence[Batch],
    should_stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Return the mean loss of all batches; None if `should_stop` said so before the end, or without a batch."""
    total, total_weight = 0.0, 0
    for batch in batches:
        if should_stop():
            return None
        loss, weight = task.loss(model, batch)
        total, total_weight = total + loss.item(), total_weight + weight
    return total / total_weight if total_weight else None


def num_samples(batch: Batch) -> int:
    """Return the number of samples in a batch."""
    return len(next(iter(batch.values())))
