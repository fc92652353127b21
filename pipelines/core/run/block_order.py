"""The global order of blocks: the same for all peers of a run, another one in each pass.

Shards come in an order drawn for the pass, and some of them, a window, are open at a time: their blocks are mixed. So
nobody needs to know the blocks of all shards, only those of the open ones: a listing of row groups for each shard, read
once.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from pipelines.core.run.spans import Block
from pipelines.core.run.training_run import stable_seed

SHARDS_PER_WINDOW = 8

BlockSizes = Callable[[int], Sequence[int]]
"""Returns the records of each row group of a shard."""


class BlockOrder:
    """All blocks of a dataset, pass by pass, window by window. Nothing is read before it is needed."""

    def __init__(self, count_shards: Callable[[], int], sizes: BlockSizes, seed: object) -> None:
        self._count_shards, self.sizes, self._seed = count_shards, sizes, seed
        self._shards = functools.lru_cache(maxsize=4)(self._drawn_shards)

    @functools.cached_property
    def num_shards(self) -> int:
        """The dataset's shards, at least one; ValueError without any."""
        if (number := self._count_shards()) < 1:
            raise ValueError("The dataset has no shards; expected at least one.")
        return number

    @property
    def num_windows(self) -> int:
        """Windows of a pass."""
        return -(-self.num_shards // SHARDS_PER_WINDOW)

    @functools.cached_property
    def num_records(self) -> int:
        """About how many records a pass has, by the shards of its first window."""
        first = self._shards(0)[0][:SHARDS_PER_WINDOW].tolist()
        return sum(sum(self.sizes(shard)) for shard in first) * self.num_shards // len(first)

    def window(self, pass_number: int, number: int) -> list[tuple[Block, int]]:
        """The blocks of a window in their order, with their numbers of records; those without any are left out."""
        shards = self._shards(pass_number)[0][number * SHARDS_PER_WINDOW : (number + 1) * SHARDS_PER_WINDOW]
        found = [
            (Block(pass_number, shard, group), size)
            for shard in shards.tolist()
            for group, size in enumerate(self.sizes(shard))
            if size > 0
        ]
        return [found[place] for place in self._random(pass_number, "window", number).permutation(len(found))]

    def window_of(self, block: Block) -> int:
        """The number of the window in which a block has its turn."""
        return int(self._shards(block.pass_number)[1][block.shard]) // SHARDS_PER_WINDOW

    def _drawn_shards(self, pass_number: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards of a pass in their order, and each shard's place in it."""
        order = self._random(pass_number, "shards").permutation(self.num_shards)
        return order, np.argsort(order)

    def _random(self, *labels: object) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(stable_seed(self._seed, *labels)))
