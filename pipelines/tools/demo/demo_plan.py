"""What differs between the demos, and their participants."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hub_tools.places import is_repository_name
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions

HERE_ONLY = ("announce", "num_trainers")
"""What differs between machines and calls, and decides nothing of what was made before."""


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What differs between the demos: the source of pictures, and sizes."""

    name: str
    """Name of the run, of its dataset, codec and CLIP on the embedded Hub."""

    output: Path
    """Folder for everything; it contains `hub/`, `work/` and `logs/` next to the results."""

    run_settings: Mapping[str, Any]
    """Fields of `TrainingRun`, of the task and of the model's configuration."""

    create_options: tuple[str, ...] = ()
    """More of `run create`."""

    organisation: str = "demo"

    own_pictures: Path | None = None
    """Somebody's folder of pictures; None: the demo makes some in `work/pictures`."""

    reading: ReadingOptions = field(default_factory=ReadingOptions)
    """Where captions are."""

    is_online: bool = False
    """Whether the Hub is the one that this machine is configured for; otherwise an embedded one in the folder."""

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
    source: Mapping[str, object] = field(default_factory=dict)
    """What the pictures are made of, such as how many there are to be."""

    opens_spaces: bool = False
    """Whether the run's five pages are open from the start of training to the last picture."""

    shows_commands: bool = False
    """Whether each command is printed before it runs."""

    announce: tuple[str, ...] = ()
    """Addresses under which others reach the auxiliary peer, if it does not know them."""

    @property
    def ingredients(self) -> dict[str, object]:
        """All that decides what comes out, without the places of files: a demo with others begins anew."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in HERE_ONLY}
        mappings = {**values.pop("run_settings"), **values.pop("source"), **asdict(values.pop("reading"))}
        return {**{name: value for name, value in values.items() if not isinstance(value, Path)}, **mappings}

    @property
    def work(self) -> Path:
        """Folder for files that commands pass to each other."""
        return self.output / "work"

    @property
    def organiser_key(self) -> tuple[str, ...]:
        """Options for the organiser's key. By default it lies by the Hub's address; an embedded one's port changes."""
        return () if self.is_online else ("--organiser-key", str((self.work / "keys" / "organiser.pem").resolve()))

    @property
    def caption_options(self) -> tuple[str, ...]:
        """Options of the commands that read captions."""
        return ("--caption-lines", self.reading.caption_lines, "--caption-from", self.reading.caption_from)

    @property
    def auxiliary_folder(self) -> Path:
        """The auxiliary peer's folder: with its key, and checkpoints that wait for the Hub."""
        return (self.work / "auxiliary").resolve()

    @property
    def pictures_to_train_on(self) -> Path:
        """Somebody's own folder, or the tars that the demo makes."""
        return self.own_pictures or self.work / "pictures"

    @property
    def num_epochs(self) -> int:
        """Length of the run."""
        return int(self.run_settings["num_epochs"])

    def repository(self, suffix: str = "") -> str:
        """Return the full name of one of the demo's repositories."""
        return f"{self.organisation}/{self.name}{suffix}"


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Tokens of the demo's users; each trainer is a separate volunteer."""

    organiser: str
    volunteers: tuple[str, ...]
    visitor: str
    """Token of a user who joins through a page."""


def split_name(name: str) -> tuple[str, str]:
    """Return organisation and name of a run. Raises ValueError if it is not ORG/NAME as the Hub takes it."""
    if not all(is_repository_name(name + ending) for ending in ("", "-codes")):
        raise ValueError(f"--name is {name!r}; expected ORG/NAME, such as my-org/birds.")
    organisation, _, short_name = name.partition("/")
    return organisation, short_name
