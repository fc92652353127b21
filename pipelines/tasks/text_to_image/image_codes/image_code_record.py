"""The owner of the image-code dataset's format: Parquet shards of captions with their VQGAN codes.

Axis names: num_records, num_codes (= grid_size * grid_size).
"""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.atomic_files import written_whole

FORMAT_VERSION = 1
KNOWN_FORMAT_VERSIONS = (1,)
LARGEST_CODEBOOK = 2**15
BROTLI_LEVEL = 5
LONGEST_CAPTION_BYTES = 2**16
ROWS_PER_ROW_GROUP = 1024
METADATA_PREFIX = "dalle_collab."
REPREPARE_COMMAND = "dalle-collab data prepare SOURCE --codec CODEC --output FOLDER"

IMAGE_CODE_SCHEMA = pa.schema(
    [
        ("caption", pa.string()),
        ("codes", pa.list_(pa.int16())),
        ("key", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("NSFW", pa.string()),
        ("similarity", pa.float32()),
    ]
)


class ImageCodeFormatError(ValueError):
    """A shard that this reader cannot read: the message says what was seen, what was expected and the cure."""


@dataclass(frozen=True, kw_only=True)
class ImageCodeLayout:
    """What all records of a dataset share: which codec made the codes, and their number and range."""

    codec_fingerprint: str
    """`VQGANCodec.fingerprint` of the codec that made the codes; another codec cannot decode them."""
    codebook_size: int
    """Codes are in [0, codebook_size)."""
    grid_size: int
    """An image is grid_size x grid_size codes, rows first."""
    sub_batch_size: int | None = None
    """Pictures that were encoded together: codes depend on it in rare cases. None: unknown."""
    precision: str | None = None
    """Of the codec's network when the codes were made: float32, tf32 or bfloat16. None: unknown."""
    fit: str | None = None
    """How pictures became squares: crop or pad. None: unknown."""

    def __post_init__(self) -> None:
        if not 1 <= self.codebook_size <= LARGEST_CODEBOOK:
            raise ValueError(
                f"codebook_size is {self.codebook_size}; int16 codes hold 1 to {LARGEST_CODEBOOK} entries."
            )
        if self.grid_size < 1:
            raise ValueError(f"grid_size is {self.grid_size}; an image needs at least one row of codes.")

    @property
    def num_codes(self) -> int:
        """Codes of one image."""
        return self.grid_size * self.grid_size

    def is_of_same_codec(self, other: "ImageCodeLayout") -> bool:
        """Whether one codec decodes the codes of both, however they were made."""
        sizes = ("codec_fingerprint", "codebook_size", "grid_size")
        return all(getattr(self, name) == getattr(other, name) for name in sizes)

    def to_metadata(self) -> dict[str, str]:
        """The entries of a shard's schema metadata."""
        known = {name: str(value) for name, value in asdict(self).items() if value is not None}
        return {
            f"{METADATA_PREFIX}{name}": value
            for name, value in {"format_version": str(FORMAT_VERSION), **known}.items()
        }


def layout_from_metadata(metadata: Mapping[bytes, bytes] | None, shard_name: str) -> ImageCodeLayout:
    """The layout in a shard's schema metadata; ImageCodeFormatError if it is missing or of another version."""
    entries = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    version = entries.get(f"{METADATA_PREFIX}format_version")
    if version is None:
        raise ImageCodeFormatError(
            f"Shard {shard_name} does not name its codec, expected the metadata {METADATA_PREFIX}format_version. "
            f"Prepare it again: {REPREPARE_COMMAND}"
        )
    if version not in {str(known) for known in KNOWN_FORMAT_VERSIONS}:
        known = " and ".join(map(str, KNOWN_FORMAT_VERSIONS))
        raise ImageCodeFormatError(
            f"Shard {shard_name} has format {version}, this reader knows {known}. "
            "Update the package: pip install -U dalle-collab"
        )
    sub_batch_size = entries.get(f"{METADATA_PREFIX}sub_batch_size")
    try:
        return ImageCodeLayout(
            codec_fingerprint=entries[f"{METADATA_PREFIX}codec_fingerprint"],
            codebook_size=int(entries[f"{METADATA_PREFIX}codebook_size"]),
            grid_size=int(entries[f"{METADATA_PREFIX}grid_size"]),
            sub_batch_size=None if sub_batch_size is None else int(sub_batch_size),
            precision=entries.get(f"{METADATA_PREFIX}precision"),
            fit=entries.get(f"{METADATA_PREFIX}fit"),
        )
    except (KeyError, ValueError) as error:
        raise ImageCodeFormatError(
            f"Shard {shard_name} has damaged metadata ({error}). Prepare it again: {REPREPARE_COMMAND}"
        ) from error


def image_code_table(
    captions: Sequence[str],
    image_codes: np.ndarray,
    layout: ImageCodeLayout,
    scalars: Mapping[str, Sequence[object]] | None = None,
) -> pa.Table:
    """Records as a table in the published schema.

    image_codes: (num_records, num_codes) integers in [0, codebook_size); scalars: columns of IMAGE_CODE_SCHEMA besides
    caption and codes (missing ones become null). ValueError for another shape or a code out of range.
    """
    image_codes = np.asarray(image_codes)
    if image_codes.shape != (len(captions), layout.num_codes):
        raise ValueError(f"Codes have shape {image_codes.shape}, expected {(len(captions), layout.num_codes)}.")
    check_code_range(image_codes, layout.codebook_size, "these records")
    offsets = np.arange(len(captions) + 1, dtype=np.int32) * layout.num_codes
    columns: dict[str, object] = {
        "caption": pa.array(captions, pa.string()),
        "codes": pa.ListArray.from_arrays(offsets, pa.array(image_codes.astype(np.int16).reshape(-1))),
    }
    for field in list(IMAGE_CODE_SCHEMA)[2:]:
        values = (scalars or {}).get(field.name)
        columns[field.name] = pa.nulls(len(captions), field.type) if values is None else pa.array(values, field.type)
    return pa.table(columns, schema=IMAGE_CODE_SCHEMA.with_metadata(layout.to_metadata()))


def check_code_range(image_codes: np.ndarray, codebook_size: int, where: str) -> None:
    """Pass if all codes are in [0, codebook_size); else ImageCodeFormatError naming the worst code."""
    if image_codes.size == 0:
        return
    lowest, highest = int(image_codes.min()), int(image_codes.max())
    if lowest < 0 or highest >= codebook_size:
        seen = lowest if lowest < 0 else highest
        raise ImageCodeFormatError(
            f"Code {seen} in {where} is outside the codebook, expected 0 to {codebook_size - 1}."
        )


def write_image_code_shard(path: str | os.PathLike, table: pa.Table) -> int:
    """Write a table to one Brotli Parquet shard, atomically; returns the shard's bytes.

    The same table gives the same bytes. Dictionary pages pack codes to about their entropy's whole bits (measured:
    1,580 bytes for 1,024 codes of a 8,192 codebook), which Brotli alone does not achieve.
    """
    path = Path(path)
    with written_whole(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="brotli",
            compression_level=BROTLI_LEVEL,
            row_group_size=ROWS_PER_ROW_GROUP,
            use_dictionary=["caption", "codes.list.element", "NSFW"],
            write_page_index=True,
        )
    return path.stat().st_size


def open_shard(path: str | os.PathLike) -> pq.ParquetFile:
    """The opened shard (a context manager); ImageCodeFormatError with the cure if it is truncated or not Parquet."""
    path = Path(path)
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ImageCodeFormatError(
            f"Shard {path.name} ({path.stat().st_size} bytes) is truncated or not Parquet: {reason} "
            f"Delete it and run the same command again to remake it: {REPREPARE_COMMAND}"
        ) from error


def read_layout(path: str | os.PathLike) -> ImageCodeLayout:
    """The layout of one shard, read only from its footer."""
    with open_shard(path) as shard:
        return layout_from_metadata(shard.schema_arrow.metadata, Path(path).name)


def iterate_shard(path: str | os.PathLike, batch_size: int = ROWS_PER_ROW_GROUP) -> Iterator[pa.RecordBatch]:
    """The shard's records in order, at most batch_size at a time; ImageCodeFormatError if its pages are damaged."""
    num_rows = 0
    with open_shard(path) as shard:
        try:
            for batch in shard.iter_batches(batch_size):
                yield batch
                num_rows += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ImageCodeFormatError(
                f"Shard {Path(path).name} is damaged after row {num_rows}: {reason} "
                f"Delete it and run the same command again to remake it: {REPREPARE_COMMAND}"
            ) from error


def columns_to_read(names: Sequence[str]) -> tuple[str, ...]:
    """The columns among these that `captions_and_codes` needs; all of them, if one that it needs is missing."""
    codes = next((name for name in ("codes", "code") if name in names), None)
    return ("caption", codes) if codes is not None and "caption" in names else tuple(names)


def captions_and_codes(
    batch: pa.RecordBatch | pa.Table | Mapping[str, Sequence[object]], *, num_codes: int, shard_name: str = "the stream"
) -> tuple[list[str | None], np.ndarray]:
    """Captions and codes of a batch, from our layout or from the published `laion_100m_vqgan_f8` layout.

    batch: an Arrow batch or a mapping from column name to values, with `caption` and either `codes` (lists of numbers)
    or `code` (int16 little-endian bytes, plain or one Brotli blob each).
    Returns captions and (num_records, num_codes) int16. ImageCodeFormatError for other columns or another length.
    """
    names = batch.keys() if isinstance(batch, Mapping) else batch.schema.names
    if "caption" not in names or not {"codes", "code"} & set(names):
        raise ImageCodeFormatError(
            f"{shard_name} has the columns {', '.join(names)}; expected `caption` with `codes` or `code`. "
            f"Make a dataset of image codes: {REPREPARE_COMMAND}"
        )
    captions = _captions(batch["caption"])
    if "codes" in names:
        return captions, _codes_from_lists(batch["codes"], num_codes, shard_name)
    blobs = _as_python(batch["code"])
    if any(len(blob) != 2 * num_codes for blob in blobs):
        blobs = [codes_from_bytes(blob, num_codes).tobytes() for blob in blobs]
    return captions, np.frombuffer(b"".join(blobs), "<i2").astype(np.int16).reshape(-1, num_codes)


def codes_from_bytes(blob: bytes, num_codes: int) -> np.ndarray:
    """(num_codes,) int16 from int16 little-endian bytes, plain or Brotli-compressed; ImageCodeFormatError otherwise."""
    raw = blob if len(blob) == 2 * num_codes else _decompress(blob, 2 * num_codes)
    if len(raw) != 2 * num_codes:
        raise ImageCodeFormatError(
            f"An image has {len(blob)} bytes of codes, expected {2 * num_codes} ({num_codes} codes of int16)."
        )
    return np.frombuffer(raw, "<i2").astype(np.int16)


def _decompress(blob: bytes, most_bytes: int) -> bytes:
    """Return what was compressed; a byte more than `most_bytes` at most, whatever the blob would come to."""
    try:
        return pa.CompressedInputStream(io.BytesIO(blob), "brotli").read(most_bytes + 1)
    except OSError:
        return b""


def _as_python(column: pa.Array | pa.ChunkedArray | Sequence[Any]) -> Sequence[Any]:
    return column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else column


def _captions(column: Sequence[object]) -> list[str | None]:
    return [_caption(value) if isinstance(value, bytes) else value for value in _as_python(column)]


def _caption(blob: bytes) -> str:
    text = _decompress(blob, LONGEST_CAPTION_BYTES)
    if len(text) > LONGEST_CAPTION_BYTES:
        raise ImageCodeFormatError(
            f"A compressed caption has more than {LONGEST_CAPTION_BYTES} bytes. Drop it and publish the dataset again."
        )
    return text.decode()


def _codes_from_lists(column: pa.Array | Sequence[Sequence[int]], num_codes: int, shard_name: str) -> np.ndarray:
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        codes = np.asarray(column)
        if codes.ndim == 2 and codes.shape[1] == num_codes:
            return codes.astype(np.int16)
        lengths = {len(row) for row in column}
        if not lengths <= {num_codes}:
            raise ImageCodeFormatError(_wrong_length(shard_name, lengths, num_codes))
        return np.asarray([list(row) for row in column], np.int16).reshape(-1, num_codes)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lengths = set(column.value_lengths().to_pylist()) if len(column) else set()
    if not lengths <= {num_codes}:
        raise ImageCodeFormatError(_wrong_length(shard_name, lengths, num_codes))
    return column.flatten().to_numpy(zero_copy_only=False).astype(np.int16).reshape(-1, num_codes)


def _wrong_length(shard_name: str, lengths: set, num_codes: int) -> str:
    seen = ", ".join(str(length) for length in sorted(lengths, key=str) if length != num_codes)
    return (
        f"{shard_name} has images of {seen} codes, expected {num_codes}. Check the dataset and the model's image grid."
    )
