"""Records of shards that several processes make, one file each, until the folder's manifest lists them all."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import FinishedShard, write_json

FOLDER_NAME = "finished"
"""It is there only while a folder is prepared."""


def save_record(folder: Path, number: int, shard: FinishedShard) -> None:
    """Note that a shard is finished, atomically."""
    (folder / FOLDER_NAME).mkdir(exist_ok=True)
    write_json(_record_path(folder, number), asdict(shard))


def load_record(folder: Path, number: int) -> FinishedShard | None:
    """The shard of this number if it was noted as finished. A damaged record counts as none: its shard is made again.

    It is asked for by name: on a network file system, lists of files lag behind.
    """
    try:
        return FinishedShard.from_json(json.loads(_record_path(folder, number).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load_all_records(folder: Path) -> dict[int, FinishedShard]:
    """All records by number."""
    numbers = [int(path.stem) for path in (folder / FOLDER_NAME).glob("*.json") if path.stem.isdecimal()]
    found = ((number, load_record(folder, number)) for number in numbers)
    return {number: shard for number, shard in found if shard is not None}


def save_count(folder: Path, source: int, num_samples: int) -> None:
    """Note how many samples the source of this index has."""
    (folder / FOLDER_NAME).mkdir(exist_ok=True)
    write_json(_count_path(folder, source), num_samples)


def load_count(folder: Path, source: int) -> int | None:
    """How many samples the source has, if that was noted."""
    try:
        return int(_count_path(folder, source).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def remove_records(folder: Path) -> None:
    """Forget all: the manifest lists every shard now. Another process may be doing the same."""
    shutil.rmtree(folder / FOLDER_NAME, ignore_errors=True)


def _record_path(folder: Path, number: int) -> Path:
    return folder / FOLDER_NAME / f"{number:05d}.json"


def _count_path(folder: Path, source: int) -> Path:
    return folder / FOLDER_NAME / f"source-{source:06d}.json"
