"""A prepared folder's manifest: its settings, and each finished shard with its span of input."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hub_tools.atomic_files import file_digest, write_text_whole
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterReport

MANIFEST_NAME = "manifest.json"
REPORT_NAME = "report.json"
MANIFEST_FORMAT = 1


class PreparationError(ValueError):
    """A folder that cannot be continued: the message says what was seen, what was expected and the cure."""


@dataclass(frozen=True, kw_only=True, order=True)
class InputPosition:
    """A position in the input: the number of samples of this source read so far."""

    source: int = 0
    """Index of the source."""
    sample: int = 0
    """Samples of it read so far."""


@dataclass(frozen=True, kw_only=True)
class FinishedShard:
    """One finished span of input, with its shard."""

    name: str | None
    """File name, None if nothing of the span was kept."""
    num_rows: int
    """Records in the shard."""
    num_bytes: int
    """Size of the file."""
    sha256: str
    """Digest of the file, empty when there is none."""
    begin: InputPosition
    """Start of the span."""
    end: InputPosition
    """Start of the next span."""
    report: FilterReport
    """What was kept and dropped."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the shard's file exists with exactly the bytes that were written."""
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
    """Settings that determine every byte of a folder's shards, and the shards finished so far."""

    settings: dict[str, object]
    """Codec, filter, shard size, batch size and sources; they must be equal to continue."""
    shards: tuple[FinishedShard, ...] = ()
    """In the order of the input."""

    def save(self, folder: Path) -> None:
        """Write the manifest atomically."""
        write_json(folder / MANIFEST_NAME, {"format": MANIFEST_FORMAT, **asdict(self)})


def load_manifest(folder: Path) -> PreparationManifest | None:
    """The folder's manifest, None if it has none; PreparationError if it is damaged or of another format."""
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


def load_report(folder: Path) -> dict[str, object] | None:
    """The folder's report, with `kept` and `dropped` by reason; None if it has none. PreparationError if damaged."""
    path = folder / REPORT_NAME
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        FilterReport.from_json(values)
    except (ValueError, KeyError, TypeError) as error:
        raise PreparationError(f"{path} is damaged ({error!r}). Run the same `data prepare` again.") from error
    return dict(values)


def check_same_settings(seen: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Pass if a folder made with `seen` may continue with `wanted`; else PreparationError.

    More sources after those of `seen` are welcome: their shards are added.
    """
    if seen.get("codec_fingerprint") != wanted["codec_fingerprint"]:
        raise PreparationError(
            f"{folder} has codes of codec {seen.get('codec_fingerprint')}, this codec is "
            f"{wanted['codec_fingerprint']}. Give the first codec with --codec, or another --output."
        )
    num_sources = len(seen.get("sources", ()))
    for name, value in wanted.items():
        if seen.get(name) != (value[:num_sources] if name == "sources" else value):
            raise PreparationError(
                f"{folder} was started with {name} = {_short(seen.get(name))}, now it is {_short(value)}. "
                "Use the first settings to continue, or another --output."
            )


def write_json(path: Path, values: object) -> None:
    """Write values as JSON, atomically."""
    write_text_whole(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
