"""Blocks of a dataset: the row groups of its shards, each read by itself, with the bytes of that row group alone."""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import HfFileSystem

from pipelines.image_codes.dataset_shards import DatasetShard, ShardedDataset

SHARDS_REMEMBERED = 64
"""Footers kept in memory, some ten kB each."""

LARGEST_BLOCK_BYTES = 2**30


class ShardBlocks:
    """Reads row groups of a dataset's shards, in a folder or on the Hub. Safe for several threads."""

    def __init__(self, dataset: ShardedDataset, shards: Sequence[DatasetShard]) -> None:
        """`shards`: those of the dataset to read, in an order that is the same for everybody."""
        self._dataset, self.shards = dataset, tuple(shards)
        self._footer = functools.lru_cache(maxsize=SHARDS_REMEMBERED)(self._read_footer)

    def sizes(self, shard: int) -> tuple[int, ...]:
        """The records of each row group of a shard, from its footer. ValueError if that cannot be read."""
        footer = self._footer(shard)
        return tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))

    def read(self, shard: int, group: int) -> pa.Table:
        """One row group. ValueError naming the shard if it is damaged, or not to be held in memory."""
        footer = self._footer(shard)
        if footer.row_group(group).total_byte_size > LARGEST_BLOCK_BYTES:
            raise ValueError(
                f"Row group {group} of shard {self.shards[shard].name} has {footer.row_group(group).total_byte_size} "
                f"bytes, expected at most {LARGEST_BLOCK_BYTES}. Write smaller row groups."
            )
        with self._open(shard) as file:
            try:
                return pq.ParquetFile(file, metadata=footer, pre_buffer=True).read_row_group(group)
            except pa.ArrowInvalid as error:
                raise ValueError(_damaged(self.shards[shard].name, self._dataset.name, error)) from error

    def _read_footer(self, shard: int) -> pq.FileMetaData:
        with self._open(shard) as file:
            try:
                return pq.read_metadata(file)
            except pa.ArrowInvalid as error:
                raise ValueError(_damaged(self.shards[shard].name, self._dataset.name, error)) from error

    def _open(self, shard: int) -> AbstractContextManager[IO[bytes]]:
        found = self.shards[shard]
        if self._dataset.revision is None:
            return (Path(self._dataset.name) / found.name).open("rb")
        # Ranges are read as they are asked for: reading ahead would fetch the next row groups, too.
        place = f"datasets/{self._dataset.name}@{self._dataset.revision}/{found.name}"
        return HfFileSystem().open(place, "rb", cache_type="none", size=found.num_bytes)


def _damaged(name: str, dataset: str, error: Exception) -> str:
    return (
        f"Shard {name} of {dataset} cannot be read ({str(error).splitlines()[0]}). "
        "Check it and publish it again: dalle-collab data verify FOLDER"
    )
