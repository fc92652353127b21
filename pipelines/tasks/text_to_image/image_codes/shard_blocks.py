"""Blocks of a dataset: the row groups of its shards, each read by itself, and of it only some columns.

A large row group is several blocks, if its pages can be read by themselves; see `parquet_pages`.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import HfFileSystem

from pipelines.tasks.text_to_image.image_codes.dataset_shards import DatasetShard, ShardedDataset
from pipelines.tasks.text_to_image.image_codes.image_code_record import columns_to_read
from pipelines.tasks.text_to_image.image_codes.parquet_pages import (
    LARGEST_BLOCK_BYTES,
    ColumnPages,
    column_pages,
    read_group,
    read_rows,
)

SHARDS_REMEMBERED = 64
"""Footers kept in memory, some ten kB each."""

SIZES_REMEMBERED = 2**14
"""Shards of which the number of records in each block is kept: an anchor asks for those of all leases."""

FOOTER_BYTES = 2**13
LEAST_FOOTER_BYTES = 2**11
"""The end of a shard that is read at once, of a small one a 64th: the footer of eight row groups of ours, or of one."""

LARGEST_FOOTER_BYTES = 2**23
MOST_ROWS = 2**20
"""Of a block."""

LARGE_GROUP_BYTES = 2**22
PIECE_BYTES = 2**21
"""A row group with more than the first has blocks of about the second."""

ROWS_WRITTEN_TOGETHER = 1024
"""Arrow begins a page only after so many rows, or twice as many: blocks begin there, too."""

BYTES_KEPT = 2**25
"""Of the blocks read last: a peer may get the rest of a block later."""


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A block: some rows of a row group."""

    group: int
    start: int
    stop: int
    is_whole: bool


@dataclass(frozen=True, kw_only=True)
class _Footer:
    metadata: pq.FileMetaData
    stored: bytes
    columns: tuple[str, ...]
    """Those to read."""

    pieces: tuple[_Piece, ...]
    pages: dict[int, dict[str, ColumnPages]] = field(default_factory=dict)
    """By row group and column, of row groups with several blocks, once one was read."""


class ShardBlocks:
    """Reads blocks of a dataset's shards, in a folder or on the Hub. Safe for several threads."""

    def __init__(
        self,
        dataset: ShardedDataset,
        shards: Sequence[DatasetShard],
        choose_columns: Callable[[Sequence[str]], Sequence[str]] = columns_to_read,
    ) -> None:
        """`shards`: those of the dataset to read, in an order that is the same for everybody.

        `choose_columns` gets the names of a shard's columns and returns those to read; by default captions and codes.
        """
        self._dataset, self.shards, self._choose_columns = dataset, tuple(shards), choose_columns
        self._footer = functools.lru_cache(maxsize=SHARDS_REMEMBERED)(self._read_footer)
        self._sizes = functools.lru_cache(maxsize=SIZES_REMEMBERED)(self._read_sizes)
        self._kept: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._num_bytes_kept = 0
        self._lock = threading.Lock()

    def sizes(self, shard: int) -> tuple[int, ...]:
        """The records of each block of a shard, from its footer. ValueError if that cannot be read."""
        return self._sizes(shard)

    def _read_sizes(self, shard: int) -> tuple[int, ...]:
        return tuple(piece.stop - piece.start for piece in self._footer(shard).pieces)

    def read(self, shard: int, block: int) -> pa.Table:
        """The chosen columns of a block. ValueError naming the shard if it is damaged, or not to be held in memory."""
        with self._lock:
            if (kept := self._kept.get((shard, block))) is not None:
                self._kept.move_to_end((shard, block))
                return kept
        footer = self._footer(shard)
        piece = footer.pieces[block]
        if piece.is_whole:
            self._check_size(shard, footer, piece.group)
        try:
            table = self._whole(shard, footer, piece) if piece.is_whole else self._part(shard, footer, piece)
        except (ValueError, IndexError, KeyError, StopIteration, TypeError, OSError, RecursionError) as error:
            # Arrow's own is of damaged bytes; errors of the network and of files are of subclasses.
            if isinstance(error, OSError) and type(error) is not OSError:
                raise
            raise ValueError(_damaged(self.shards[shard].name, self._dataset.name, error)) from error
        self._keep((shard, block), table)
        return table

    def _keep(self, name: tuple[int, int], table: pa.Table) -> None:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = table
                self._num_bytes_kept += table.nbytes
            while self._num_bytes_kept > BYTES_KEPT:
                self._num_bytes_kept -= self._kept.popitem(last=False)[1].nbytes

    def _check_size(self, shard: int, footer: _Footer, group: int) -> None:
        size = footer.metadata.row_group(group).total_byte_size
        if size > LARGEST_BLOCK_BYTES:
            raise ValueError(
                f"Row group {group} of shard {self.shards[shard].name} has {size} bytes, expected at most "
                f"{LARGEST_BLOCK_BYTES}. Write smaller row groups, or a page index."
            )

    def _whole(self, shard: int, footer: _Footer, piece: _Piece) -> pa.Table:
        with self._open(shard) as file:
            read, size = functools.partial(_read_range, file), self.shards[shard].num_bytes
            return read_group(read, footer.metadata, piece.group, footer.columns, size)

    def _part(self, shard: int, footer: _Footer, piece: _Piece) -> pa.Table:
        with self._open(shard) as file:
            read = functools.partial(_read_range, file)
            if piece.group not in footer.pages:
                footer.pages[piece.group] = column_pages(footer.stored, footer.metadata, piece.group, footer.columns)
            found = [
                read_rows(read, footer.metadata, piece.group, name, pages, piece.start, piece.stop)
                for name, pages in footer.pages[piece.group].items()
            ]
        return pa.table({name: table[name] for table in found for name in table.schema.names})

    def _read_footer(self, shard: int) -> _Footer:
        size = self.shards[shard].num_bytes
        with self._open(shard) as file:
            guess = min(max(size // 64, LEAST_FOOTER_BYTES), FOOTER_BYTES)
            end = _read_range(file, max(0, size - guess), size)
            length = int.from_bytes(end[-8:-4], "little") + 8
            if end.endswith(b"PAR1") and len(end) < length <= min(size, LARGEST_FOOTER_BYTES):
                end = _read_range(file, size - length, size - len(end)) + end
        try:
            metadata = pq.read_metadata(pa.BufferReader(end))
        except pa.ArrowInvalid as error:
            raise ValueError(_damaged(self.shards[shard].name, self._dataset.name, error)) from error
        names = metadata.schema.to_arrow_schema().names
        columns = tuple(self._choose_columns(names))
        try:
            pieces = [it for group in range(metadata.num_row_groups) for it in _pieces(metadata, group, columns, size)]
            if (most := max((piece.stop - piece.start for piece in pieces), default=0)) > MOST_ROWS:
                raise ValueError(f"a block of {most} rows")
        except ValueError as error:
            raise ValueError(_damaged(self.shards[shard].name, self._dataset.name, error)) from error
        return _Footer(metadata=metadata, stored=end[-length:-8], columns=columns, pieces=tuple(pieces))

    def _open(self, shard: int) -> AbstractContextManager[IO[bytes]]:
        found = self.shards[shard]
        if self._dataset.revision is None:
            return (Path(self._dataset.name) / found.name).open("rb")
        # Ranges are read as they are asked for: reading ahead would fetch the next row groups, too.
        place = f"datasets/{self._dataset.name}@{self._dataset.revision}/{found.name}"
        return HfFileSystem().open(place, "rb", cache_type="none", size=found.num_bytes)


def _pieces(metadata: pq.FileMetaData, group: int, columns: tuple[str, ...], size: int) -> list[_Piece]:
    """The blocks of a row group. They follow from the footer, because everybody has to see the same ones."""
    row_group = metadata.row_group(group)
    num_rows, num_bytes, can_be_divided = row_group.num_rows, 0, True
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        if column.path_in_schema.partition(".")[0] in columns:
            num_bytes += column.total_compressed_size
            is_flat = metadata.schema.column(number).max_repetition_level == 0
            can_be_divided &= column.has_offset_index or is_flat
    if not 0 <= num_bytes <= size or num_rows < 0:
        raise ValueError(f"row group {group} is said to have {num_rows} rows in {num_bytes} bytes of {size}")
    if num_bytes <= LARGE_GROUP_BYTES or not can_be_divided:
        return [_Piece(group=group, start=0, stop=num_rows, is_whole=True)]
    step = max(1, round(PIECE_BYTES * num_rows / num_bytes / ROWS_WRITTEN_TOGETHER)) * ROWS_WRITTEN_TOGETHER
    return [
        _Piece(group=group, start=start, stop=min(start + step, num_rows), is_whole=False)
        for start in range(0, num_rows, step)
    ]


def _read_range(file: IO[bytes], start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def _damaged(name: str, dataset: str, error: Exception) -> str:
    return (
        f"Shard {name} of {dataset} cannot be read ({str(error).splitlines()[0]}). "
        "Check it and publish it again: dalle-collab data verify FOLDER"
    )
