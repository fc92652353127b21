"""What changed between two versions of a folder of shards, record by record, in bounded memory."""

import contextlib
import hashlib
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from hub_tools.atomic_files import file_digest
from pipelines.data_preparation.inspection.dataset_facts import shards_of
from pipelines.image_codes.image_code_record import (
    ImageCodeFormatError,
    captions_and_codes,
    iterate_shard,
    open_shard,
    read_layout,
)

MOST_EXAMPLES = 10
DIGEST_BYTES = 6
"""Of captions and codes: sums of many such numbers still fit into SQLite's integers."""

CACHE_KIB = 128 * 1024

TABLE = "CREATE TABLE records (key TEXT, side INTEGER, caption INTEGER, codes INTEGER)"
COMPARISON = """
SELECT key, sum(side < 0), sum(side > 0), sum(side * caption), sum(side * codes)
FROM records GROUP BY key HAVING sum(side) != 0 OR sum(side * caption) != 0 OR sum(side * codes) != 0 ORDER BY key
"""
"""One row for each key that differs. Several records of one key, such as those of two sources with one name, are
compared as a set: digests of equal ones cancel out."""


@dataclass(frozen=True, kw_only=True)
class DatasetDiff:
    """The records that differ, by key."""

    num_old: int
    """Records of the old version."""
    num_new: int
    """Records of the new version."""
    num_same_shards: int
    """Files that are in both with equal bytes, whatever their names."""
    counts: dict[str, int]
    """Records `added`, `removed`, with `changed captions`, with `changed codes`."""
    examples: dict[str, tuple[str, ...]]
    """The first keys of each kind."""


def compare_datasets(
    old: Path, new: Path, on_shard: Callable[[int, int], None] = lambda done, total: None
) -> DatasetDiff:
    """Compare two folders of shards; `on_shard` gets the number of shards read or passed over, and their total.

    Equal files are not read. The rest goes through a database in a temporary folder, of about the size of the keys.
    FileNotFoundError without shards, ImageCodeFormatError for shards that cannot be read or have no keys.
    """
    shards = {-1: shards_of(old), 1: shards_of(new)}
    digests = {side: [file_digest(path) for path in paths] for side, paths in shards.items()}
    same = Counter(digests[-1]) & Counter(digests[1])
    total, done, num_records = sum(map(len, shards.values())), 0, {-1: 0, 1: 0}
    with tempfile.TemporaryDirectory() as folder, _database(Path(folder)) as database:
        for side, paths in shards.items():
            left = same.copy()
            for path, digest in zip(paths, digests[side], strict=True):
                if left[digest]:
                    left[digest] -= 1
                    num_records[side] += _num_rows(path)
                else:
                    num_records[side] += _insert(database, path, side)
                done += 1
                on_shard(done, total)
        counts, examples = _compared(database)
    return DatasetDiff(
        num_old=num_records[-1],
        num_new=num_records[1],
        num_same_shards=same.total(),
        counts=counts,
        examples=examples,
    )


def _database(folder: Path) -> contextlib.closing[sqlite3.Connection]:
    database = sqlite3.connect(folder / "records.sqlite", isolation_level=None)
    for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE", f"cache_size = -{CACHE_KIB}"):
        database.execute(f"PRAGMA {setting}")
    database.execute(TABLE)
    return contextlib.closing(database)


def _num_rows(path: Path) -> int:
    with open_shard(path) as shard:
        return int(shard.metadata.num_rows)


def _insert(database: sqlite3.Connection, path: Path, side: int) -> int:
    layout, num_rows = read_layout(path), 0
    database.execute("BEGIN")
    for batch in iterate_shard(path):
        if "key" not in batch.schema.names:
            raise ImageCodeFormatError(f"Shard {path.name} has no column `key`; records are compared by their keys.")
        database.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", _rows(batch, layout.num_codes, path.name, side))
        num_rows += batch.num_rows
    database.execute("COMMIT")
    return num_rows


def _rows(batch: pa.RecordBatch, num_codes: int, name: str, side: int) -> Iterator[tuple[str, int, int, int]]:
    captions, codes = captions_and_codes(batch, num_codes=num_codes, shard_name=f"Shard {name}")
    for key, caption, row in zip(batch["key"].to_pylist(), captions, codes, strict=True):
        yield key or "", side, _digest((caption or "").encode()), _digest(row.tobytes())


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest())


def _compared(database: sqlite3.Connection) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    counts: Counter[str] = Counter({"added": 0, "removed": 0, "changed captions": 0, "changed codes": 0})
    examples: dict[str, list[str]] = {kind: [] for kind in counts}
    for key, num_old, num_new, captions, codes in database.execute(COMPARISON):
        kinds = {"added": max(0, num_new - num_old), "removed": max(0, num_old - num_new)}
        if num_old == num_new:
            kinds |= {"changed captions": int(captions != 0), "changed codes": int(codes != 0)}
        for kind, number in kinds.items():
            counts[kind] += number
            if number and len(examples[kind]) < MOST_EXAMPLES:
                examples[kind].append(key)
    return dict(counts), {kind: tuple(keys) for kind, keys in examples.items()}
