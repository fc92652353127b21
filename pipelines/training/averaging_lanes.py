"""Several streams from a sender to a reducer, which together keep a long link full.

Streams of the libp2p daemon begin with a window of 256 KiB, and the words that move a window on wait behind all that
goes the same way: over 100 Mbit/s and 50 ms a single stream left the link idle for a third of the time. Several have
more on the way, and do not stand still at the same moment.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

MAX_LANES = 8
"""From one sender to all reducers together, where there are fewer reducers."""

MIN_PARTS_PER_LANE = 2
"""What is small is not worth another stream."""


@dataclass(frozen=True)
class Lane:
    """One of the streams over which a sender passes its parts to one reducer: every `num_lanes`-th part is its own."""

    number: int
    num_lanes: int

    @classmethod
    def all_for(cls, num_parts: int, group_size: int) -> tuple["Lane", ...]:
        """Return the lanes to a reducer of so many parts, one or more: who sends to many needs fewer for each."""
        num_lanes = max(1, min(-(-MAX_LANES // max(1, group_size - 1)), num_parts // MIN_PARTS_PER_LANE))
        return tuple(cls(number, num_lanes) for number in range(num_lanes))

    def part_indices(self, num_parts: int) -> range:
        """Return which of a reducer's parts pass here, in order."""
        return range(self.number, num_parts, self.num_lanes)


async def in_turn(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Yield one item of each source in turn, until one whose turn it is has ended; all are read at the same time.

    Raises:
        Exception: what a source has raised, when it is that source's turn.
    """
    queues: list[asyncio.Queue] = [asyncio.Queue(maxsize=1) for _ in sources]

    async def read(source: AsyncGenerator[Item, None], queue: asyncio.Queue) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await queue.put((item, None))
            await queue.put(None)
        except Exception as error:
            await queue.put((None, error))

    readers = [asyncio.create_task(read(source, queue)) for source, queue in zip(sources, queues, strict=True)]
    try:
        for queue in itertools.cycle(queues):
            if (outcome := await queue.get()) is None:
                return
            item, error = outcome
            if error is not None:
                raise error
            yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
