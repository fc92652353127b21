"""What a prepared folder says about itself: its settings, and each finished shard with the span of input it holds."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hub_tools.atomic_files import write_text_whole
from pipelines.data_preparation.filtering import FilterReport

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1


class PreparationError(ValueError):
    """A folder that cannot be continued: the message says what was seen, what was expected and the cure."""


@dataclass(frozen=True, kw_only=True, order=True)
class InputPosition:
    """A place in the input: so many samples of this source are behind it."""

    source: int = 0
    """Index of the source."""
    sample: int = 0
    """Samples of it that were read."""


@dataclass(frozen=True, kw_only=True)
class FinishedShard:
    """One span of input that is done, with the shard it became."""

    name: str | None
    """File name, None when nothing of the span was kept."""
    num_rows: int
    """Records in the shard."""
    num_bytes: int
    """Size of the file."""
    sha256: str
    """Digest of the file, empty when there is none."""
    begin: InputPosition
    """Where the span begins."""
    end: InputPosition
    """Where the next span begins."""
    report: FilterReport
    """What was kept and dropped."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the shard's file is there with the very bytes that were written."""
        return self.name is None or (
            (folder / self.name).is_file()
            and (folder / self.name).stat().st_size == self.num_bytes
            and file_digest(folder / self.name) == self.sha256
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The shard that `dataclasses.asdict` gave."""
        return cls(
            **{name: values[name] for name in ("name", "num_rows", "num_bytes", "sha256")},
            begin=InputPosition(**values["begin"]),
            end=InputPosition(**values["end"]),
            report=FilterReport.from_json(values["report"]),
        )


@dataclass(frozen=True, kw_only=True)
class PreparationManifest:
    """Settings that decide every byte of a folder's shards, and the shards finished so far."""

    settings: dict[str, Any]
    """Codec, filter, shard size, batch size and sources; continuing needs equal ones."""
    shards: tuple[FinishedShard, ...] = ()
    """In the order of the input."""

    def save(self, folder: Path) -> None:
        """Write the manifest, whole or not at all."""
        write_json(folder / MANIFEST_NAME, {"format": MANIFEST_FORMAT, **asdict(self)})


def load_manifest(folder: Path) -> PreparationManifest | None:
    """The folder's manifest, None when it has none; PreparationError when it is damaged or of another format."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text())
        if values["format"] != MANIFEST_FORMAT:
            raise PreparationError(
                f"{path} has format {values['format']}, this version knows {MANIFEST_FORMAT}. "
                "Update the package, or choose another --output."
            )
        shards = tuple(FinishedShard.from_json(shard) for shard in values["shards"])
        return PreparationManifest(settings=values["settings"], shards=shards)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise PreparationError(f"{path} is damaged ({error!r}). Choose another --output or delete {folder}.") from error


def check_same_settings(seen: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Pass when a folder made with `seen` may go on with `wanted`; else PreparationError."""
    if seen.get("codec_fingerprint") != wanted["codec_fingerprint"]:
        raise PreparationError(
            f"{folder} holds codes of the codec {seen.get('codec_fingerprint')}, this codec is "
            f"{wanted['codec_fingerprint']}. Give the first codec with --codec, or another --output."
        )
    for name, value in wanted.items():
        if seen.get(name) != value:
            raise PreparationError(
                f"{folder} was begun with {name} = {_short(seen.get(name))}, now it is {_short(value)}. "
                "Use the first settings to continue, or another --output."
            )


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON, whole or not at all."""
    write_text_whole(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def file_digest(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
