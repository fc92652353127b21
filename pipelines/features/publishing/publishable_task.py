"""What a task adds to its training to be published: how its model is saved, described, shown and measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL.Image import Image

from pipelines.core.run.task import TrainingTask
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.settings import MemoryEstimate, MemorySettings


@dataclass(frozen=True, kw_only=True)
class Source:
    """A repository that a model is made from."""

    role: str
    """`dataset`, or what the task calls it, such as `codec`."""

    repository: str
    revision: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What a model card says about a published checkpoint."""

    repository: str
    epoch: int
    loss: float | None
    num_parameters: int
    history: Sequence[Any] = ()
    """Points of the run's history; see `metrics.epoch_summary`."""

    evaluations: Sequence[Any] = ()
    """Held-out losses; see `metrics.evaluation.held_out_losses`."""

    figures: Sequence[Any] = ()
    """Figures of evaluated checkpoints; see `metrics.evaluation.checkpoint_figures`."""

    header: Mapping[str, object] = field(default_factory=dict)
    """The YAML header of the card that is on the Hub."""

    sources: Sequence[Source] = ()

    contributors: str = ""
    """Who did how much on which devices, in Markdown; empty: nobody is known yet."""

    picture: str | None = None
    """File of the newest picture of the progress reel, by its name in the repository."""

    prompts: Sequence[str] = ()
    """The captions of that picture, from top to bottom."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """An organiser's request for a new run. Each task knows which fields it uses."""

    run_id: str
    task: str
    dataset: str
    """Dataset Hub repository."""

    tokenizer: str
    """Folder or Model Hub repository of a fast tokenizer."""

    settings: Mapping[str, object]
    """Fields of `TrainingRun`, of the task's settings and of the model's configuration, merged."""

    codec: str | None = None
    """Model Hub repository of the codec that made a dataset's image codes."""

    clip: str | None = None
    """CLIP that ranks pictures."""


class Processor(Protocol):
    """A processor or a tokenizer of transformers."""

    def save_pretrained(self, folder: Path) -> object:
        """Write its files into a folder."""


class PublishableTask(TrainingTask, Protocol):
    """A task of a run that has a repository."""

    def save(self, folder: Path, model: torch.nn.Module) -> None:
        """Write the model, its processor and its custom code: what `from_pretrained` needs."""

    def companions(self) -> Mapping[str, tuple[str, str | None]]:
        """Return other repositories needed to use the model, by role: each with its revision."""

    def card(self, facts: CheckpointFacts) -> str:
        """Return the model card, README.md, of a checkpoint."""

    def draw(self, model: torch.nn.Module, prompts: Sequence[str]) -> Image | None:
        """Return the model's output for the run's prompts as one picture for the progress reel; None: no reel."""

    def memory(self, settings: MemorySettings) -> MemoryEstimate:
        """Estimate the memory that training takes; raises ValueError if the model's sizes are invalid."""

    def num_parameters(self) -> int:
        """Return how many parameters the model has; raises as `memory`."""


OpenTask = Callable[[TrainingRun, str, str | None], PublishableTask]
"""Returns the task of a run, whose files are in a repository at a commit, or in a folder; `tasks.choice.open_task`
knows all of ours."""
