"""Checks a folder of shards: every shard opens, has complete records of one codec, and matches the manifest.

What is wrong with a shard names its row, counted from 0, where there is one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import FinishedShard, load_manifest
from pipelines.tasks.text_to_image.image_codes.image_code_record import (
    ImageCodeFormatError,
    ImageCodeLayout,
    captions_and_codes,
    iterate_shard,
    read_layout,
)

CURE = "Run the same `dalle-collab data prepare` again to remake this shard."


@dataclass(frozen=True, kw_only=True)
class VerificationReport:
    """What a folder contains, and what is wrong with it."""

    num_shards: int
    """Valid shards."""
    num_records: int
    """Records in them."""
    num_bytes: int
    """Bytes of them."""
    layout: ImageCodeLayout | None
    """Codec and sizes shared by all valid shards, None if there are none."""
    problems: tuple[str, ...]
    """One line per invalid shard: what was seen, what was expected, the cure."""


def verify_folder(folder: Path, on_shard: Callable[[int, int], None] = lambda done, total: None) -> VerificationReport:
    """Read every record of every shard; `on_shard` gets the number of checked shards and their total.

    FileNotFoundError if the folder has no shards at all.
    """
    manifest = load_manifest(folder) if folder.is_dir() else None
    listed = {shard.name: shard for shard in manifest.shards if shard.name} if manifest else {}
    names = sorted(listed.keys() | {path.name for path in folder.glob("*.parquet")})
    if not names:
        raise FileNotFoundError(f"{folder} has no Parquet shards. Make some: dalle-collab data prepare --output DIR")
    layout, problems, num_records, num_bytes = None, [], 0, 0
    for done, name in enumerate(names, start=1):
        try:
            shard_layout, num_rows = verify_shard(folder / name, layout, listed.get(name), has_manifest=bool(manifest))
            layout = layout or shard_layout
            num_records, num_bytes = num_records + num_rows, num_bytes + (folder / name).stat().st_size
        except ValueError as error:
            problems.append(str(error))
        on_shard(done, len(names))
    return VerificationReport(
        num_shards=len(names) - len(problems),
        num_records=num_records,
        num_bytes=num_bytes,
        layout=layout,
        problems=tuple(problems),
    )


def verify_shard(
    path: Path, expected: ImageCodeLayout | None, listed: FinishedShard | None, *, has_manifest: bool
) -> tuple[ImageCodeLayout, int]:
    """The shard's layout and number of records; ImageCodeFormatError naming the shard if something is wrong."""
    if not path.is_file():
        raise ImageCodeFormatError(f"Shard {path.name} is missing, the manifest lists it. {CURE}")
    layout = read_layout(path)
    if expected is not None and layout != expected:
        raise ImageCodeFormatError(
            f"Shard {path.name} was made by {_words(layout)}, the shards before it by {_words(expected)}. "
            "Keep shards that were made in one way in a folder."
        )
    num_rows = 0
    for batch in iterate_shard(path):
        _check_batch(batch, layout, path.name, num_rows)
        num_rows += batch.num_rows
    if has_manifest and listed is None:
        raise ImageCodeFormatError(f"Shard {path.name} is not in the manifest. Move it out of this folder.")
    if listed is not None and not listed.is_whole(path.parent):
        raise ImageCodeFormatError(
            f"Shard {path.name} was changed after it was written: {num_rows} records and {path.stat().st_size} bytes, "
            f"the manifest has {listed.num_rows} and {listed.num_bytes} with another digest. {CURE}"
        )
    return layout, num_rows


def _check_batch(batch: pa.RecordBatch, layout: ImageCodeLayout, name: str, first_row: int) -> None:
    where = f"Shard {name}"
    _check_rows(_has_other_length(batch, layout), f"{where} has in row %d not {layout.num_codes} codes.", first_row)
    captions, image_codes = captions_and_codes(batch, num_codes=layout.num_codes, shard_name=where)
    is_outside = ((image_codes < 0) | (image_codes >= layout.codebook_size)).any(axis=1)
    _check_rows(
        is_outside,
        f"{where} has in row %d a code outside the codebook, expected 0 to {layout.codebook_size - 1}.",
        first_row,
    )
    is_empty = np.array([not (caption or "").strip() for caption in captions], bool)
    _check_rows(is_empty, f"{where} has in row %d no caption.", first_row)


def _has_other_length(batch: pa.RecordBatch, layout: ImageCodeLayout) -> np.ndarray:
    if "codes" not in batch.schema.names:
        return np.zeros(batch.num_rows, bool)
    lengths = batch["codes"].value_lengths().fill_null(-1)
    return lengths.to_numpy(zero_copy_only=False) != layout.num_codes


def _check_rows(is_wrong: np.ndarray, words: str, first_row: int) -> None:
    if is_wrong.any():
        number = int(is_wrong.sum())
        more = f" {number - 1} of the next {len(is_wrong)} rows have the same fault." if number > 1 else ""
        raise ImageCodeFormatError(f"{words % (first_row + int(is_wrong.argmax()))}{more} {CURE}")


def _words(layout: ImageCodeLayout) -> str:
    sizes = f"{layout.codebook_size} codes, grid {layout.grid_size}"
    making = f"precision {layout.precision}, fit {layout.fit}, {layout.sub_batch_size} pictures at a time"
    return f"codec {layout.codec_fingerprint} ({sizes}, {making})"
