"""What a run publishes to the Hub, file by file, with times, versions, commits and signatures masked."""

import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from frozen_protocol import fixed_key
from frozen_training import digest_of, in_numbers
from parts import (
    AuxiliaryOptions,
    LocalHub,
    RunSnapshot,
    command_line,
    publish_made_up_checkpoints,
    publish_training_material,
)
from PIL import Image
from safetensors.torch import load_file

REPOSITORY = "org/golden"
EPOCHS = [2, 4]
RECORDS = [[epoch, 30 * epoch] for epoch in range(1, 5)]
LONGEST_TEXT = 3000
MASK = "(varies)"
VARYING_FIELDS = {
    "training_run.json": ("dataset_revision", "organiser_key", "package_version", "required_versions"),
    "publisher_keys.json": ("added_at", "key", "signature"),
    "entries.json": ("time", "signature"),
    "checkpoint_manifest.json": (
        *("dataset_revision", "package_version", "parent_commit", "parent_manifest", "sha256", "size", "tensors"),
        "signature",
    ),
    "config.json": ("transformers_version",),
    "generation_config.json": ("transformers_version",),
    "processor_config.json": ("image_codec_fingerprint", "image_codec_revision"),
    "metrics/summary.json": (
        *("updated", "time", "epoch_seconds", "usual_epoch_seconds", "hours_today", "hours_week", "hours_all"),
    ),
    "metrics/contribution_counters.json": ("time", "device_seconds"),
}
"""Fields of JSON files whose values depend on the time or on versions, as commits and digests of files do too."""

VARYING_COLUMNS = ("time", "epoch_seconds", "day", "seconds")
"""Of Parquet files."""

WRITTEN_BY_TRANSFORMERS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
VARYING_TEXT = {"README.md": r"(?<=\| `)[0-9a-f]{12}(?=` \|)"}


def published_files(hub: LocalHub, folder: Path) -> dict[str, Any]:
    """Create a run, publish two checkpoints, and return what its repository holds; needs the Hub's environment."""
    material = publish_training_material(hub, None, folder / "material")
    command_line(material.create_arguments(REPOSITORY), standalone_mode=False)
    before = material.snapshot(REPOSITORY)
    options = AuxiliaryOptions(folder=folder / "publisher")
    _save_fixed_key(options.key_file)
    publish_made_up_checkpoints(REPOSITORY, dict(folder=str(options.folder), epochs=EPOCHS, records=RECORDS))
    RunSnapshot.read(REPOSITORY).download_checkpoint()  # raises if a signature or a digest does not fit
    after = material.snapshot(REPOSITORY)
    titles = [commit.title for commit in material.api.list_repo_commits(REPOSITORY)][::-1]
    return dict(
        bits=dict(codec_fingerprint=material.layout.codec_fingerprint),
        tags=sorted(tag.name for tag in material.api.list_repo_refs(REPOSITORY).tags),
        commits=[title for title in titles if not title.startswith("Metrics")],  # they come when there is time
        created={name: _content(before, name) for name in _names(before)},
        published={_stable_name(name): _content(after, name) for name in _names(after)},
    )


def _save_fixed_key(path: Path) -> None:
    fixed_key().save(path)


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _stable_name(name: str) -> str:
    return re.sub(r"(contributions-)\d{4}-\d\d(\.parquet)", rf"\1{MASK}\2", name)


def _content(folder: Path, name: str) -> Any:
    path = folder / name
    return READERS.get(path.suffix, _text)(path, name)


def _text(path: Path, name: str) -> Any:
    return _shortened(re.sub(VARYING_TEXT.get(name, r"(?!)"), MASK, path.read_text(encoding="utf-8")))


def _json(path: Path, name: str) -> Any:
    text = path.read_text(encoding="utf-8")
    values = json.loads(text)
    indent = 2 if text.startswith("{\n  ") else 1 if text.startswith("{\n ") else None
    layout = dict(indent=indent, is_ascii=text.isascii(), is_sorted=list(values) == sorted(values), end=text[-1:])
    masked = _masked(values, VARYING_FIELDS.get(name, ()))
    content = dict(layout, content=_shortened(json.dumps(masked, indent=1, ensure_ascii=False)))
    return dict(by_transformers=content) if name in WRITTEN_BY_TRANSFORMERS else content


def _masked(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _mask_of(held) if key in names else _masked(held, names) for key, held in value.items()}
    return [_masked(one, names) for one in value] if isinstance(value, list) else value


def _mask_of(value: Any) -> Any:
    """Return the names in a value that varies, without what they stand for."""
    if isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    return value if value is None else MASK


def _shortened(text: str) -> Any:
    if len(text) <= LONGEST_TEXT:
        return text.splitlines()
    return dict(sha256=hashlib.sha256(text.encode()).hexdigest(), num_characters=len(text))


def _tensors(path: Path, name: str) -> dict[str, Any]:
    tensors = load_file(path)
    header = {key: [str(value.dtype), list(value.shape)] for key, value in tensors.items()}
    return dict(
        bits=digest_of(tensors.values()),
        tensors=header,
        numbers={key: in_numbers(value) for key, value in tensors.items() if value.is_floating_point()},
    )


def _table(path: Path, name: str) -> dict[str, Any]:
    file = pq.ParquetFile(path)
    rows = [row | dict.fromkeys(row.keys() & set(VARYING_COLUMNS), MASK) for row in file.read().to_pylist()]
    group = file.metadata.row_group(0) if file.metadata.num_row_groups else None
    codecs = sorted({group.column(index).compression for index in range(group.num_columns)}) if group else []
    return dict(columns=[f"{field.name} {field.type}" for field in file.schema_arrow], rows=rows, codecs=codecs)


def _picture(path: Path, name: str) -> dict[str, Any]:
    picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    return dict(by_matplotlib=hashlib.sha256(picture.tobytes()).hexdigest(), size=list(picture.size))


def _code(path: Path, name: str) -> str:
    """Code is published as it is in the repository; it changes with every edit."""
    return "code"


READERS: dict[str, Callable[[Path, str], Any]] = {
    ".json": _json,
    ".safetensors": _tensors,
    ".parquet": _table,
    ".png": _picture,
    ".py": _code,
}
