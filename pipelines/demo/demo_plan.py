"""What differs between the demos, and who takes part in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORGANISATION = "demo"


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What differs between the demos: where pictures come from, and sizes."""

    name: str
    """Name of the run, of its dataset, codec and CLIP on the embedded Hub."""

    output: Path
    """Folder for everything; `hub/`, `work/` and `logs/` lie in it beside the results."""

    run_settings: Mapping[str, Any]
    """Fields of `TrainingRun`, of the task and of the model's configuration."""

    codec_folder: Path = Path()
    clip_folder: Path = Path()

    micro_batch_size: int = 32
    num_trainers: int = 2
    vocabulary_size: int = 256
    shard_size: int = 2048
    num_candidates: int = 16
    keep: int = 4
    num_captions_in_grid: int = 12
    top_k: int = 64
    temperature: float = 0.7
    opens_spaces: bool = False
    """Whether the run's five pages are open from the beginning of training to the last picture."""

    @property
    def work(self) -> Path:
        """Folder for what the commands hand to each other."""
        return self.output / "work"

    @property
    def pictures_to_train_on(self) -> Path:
        """Folder of tars: `pictures/train` where some pictures are held out, else `pictures`."""
        train = self.work / "pictures" / "train"
        return train if train.exists() else self.work / "pictures"

    @property
    def num_epochs(self) -> int:
        """Length of the run."""
        return int(self.run_settings["num_epochs"])

    def repository(self, suffix: str = "") -> str:
        """Return the full name of one of the demo's repositories."""
        return f"{ORGANISATION}/{self.name}{suffix}"


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Tokens of the demo's people; each trainer is a volunteer of its own."""

    organiser: str
    volunteers: tuple[str, ...]
    visitor: str
    """Of somebody who joins through a page."""
