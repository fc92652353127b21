"""The seam between the engine and what it trains: all that training peers and auxiliary peers know of a task.

The engine averages gradients of any `torch.nn.Module`. What the model is, where its data come from, what its loss is
and how a checkpoint is used is the task's; `pipelines/training/tasks` has one folder for each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL.Image import Image

from pipelines.memory_estimate.estimate import MemoryEstimate
from pipelines.memory_estimate.settings import MemorySettings
from pipelines.training.run.training_run import TrainingRun

Batch = Mapping[str, torch.Tensor]
"""A micro-batch: tensors by name, each with the samples along its first dimension."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What a model card tells of a published checkpoint."""

    repository: str
    epoch: int
    loss: float | None
    num_parameters: int
    history: Sequence[Mapping[str, Any]] = ()
    """Points of the run's history; see `metrics.history`."""

    evaluations: Sequence[Mapping[str, Any]] = ()
    """Held-out losses: `epoch`, `loss`."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What an organiser asks of a new run. Each task knows which parts it takes."""

    run_id: str
    task: str
    dataset: str
    """Dataset Hub repository."""

    tokenizer: str
    """Folder or Model Hub repository of a fast tokenizer."""

    settings: Mapping[str, Any]
    """Fields of `TrainingRun`, of the task's settings and of the model's configuration, in one."""

    codec: str | None = None
    """Model Hub repository of the codec that made a dataset's image codes."""

    clip: str | None = None
    """CLIP that ranks pictures."""


class Processor(Protocol):
    """A processor or a tokenizer of transformers."""

    def save_pretrained(self, folder: Path) -> Any:
        """Write its files into a folder."""


class TrainingTask(Protocol):
    """One kind of model on one kind of data. Making one reads nothing; its parts are read when they are needed."""

    run: TrainingRun

    sample_weight: float
    """Weight of a usual sample in the run's unit: 1 where samples are counted."""

    device_program: str | None
    """Module that computes gradients on a further device of a peer; None: a peer of this task uses one device."""

    def check(self) -> None:
        """Raise ValueError unless data, processor and model fit each other and the model knows all of its settings."""

    def new_model(self) -> torch.nn.Module:
        """Return the model with the parameters with which the run begins, equal in every bit on all peers."""

    def compiling_pays(self) -> bool:
        """Tell whether `torch.compile` speeds the model up on a GPU."""

    def batches(self, *, batch_size: int, seed: int, shuffle_buffer_size: int) -> Iterator[Batch]:
        """Yield micro-batches of `batch_size` samples without end, in an order that only the seed decides.

        Samples that are held out are left out, the same ones on every peer.
        """

    def held_out_batches(self) -> Sequence[Batch]:
        """Read the samples of the evaluation, the same ones on every peer; empty: the run has no evaluation."""

    def made_up_batch(self, size: int) -> Batch:
        """Return `size` samples of the usual shapes; their values do not matter for memory and time."""

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the summed loss of a batch, a float scalar with its graph, and the weight that it is the sum over."""

    def save(self, folder: Path, model: torch.nn.Module) -> None:
        """Write the model, its processor and code that travels with it: what `from_pretrained` needs."""

    def companions(self) -> Mapping[str, tuple[str, str | None]]:
        """Return other repositories that using the model takes, by what they are: each with its revision."""

    def card(self, facts: CheckpointFacts) -> str:
        """Return the model card, README.md, of a checkpoint."""

    def draw(self, model: torch.nn.Module, prompts: Sequence[str]) -> Image | None:
        """Return what the model makes of the run's prompts as one picture for the progress reel; None: no reel."""

    def memory(self, settings: MemorySettings) -> MemoryEstimate:
        """Estimate the memory that training takes; raises ValueError if the model's sizes cannot work."""


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
