"""Parallel streams from a sender to a reducer, which together saturate a high-latency link.

Streams of the libp2p daemon begin with a window of 256 KiB, and window updates queue behind all other traffic in the
same direction: at 100 Mbit/s and 50 ms a single stream left the link idle for a third of the time. Several streams have
more in flight, and do not stall at the same moment.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

PART_BYTES = 2**18
"""Bytes of a part on the wire. Smaller ones use a link better and cost more computing: on a free link a round of 8 M
parameters takes 10 % longer than with 512 KiB, with 128 KiB 35 %."""

MAX_STREAMS = 8
"""Streams from one sender to all reducers together, if there are fewer reducers."""

MIN_PARTS_PER_STREAM = 8
"""All streams share the link, so each waits for its next part as long as all of them need for one part each. That
must stay short relative to the whole round: a sender is dropped after an eighth of the round's time-out."""

MIN_VALUES_PER_STREAM = 2**18
"""Anything smaller fits into a single stream's first window."""


@dataclass(frozen=True)
class ParallelStreams:
    """Which stream carries which part from a sender to one reducer; both ends compute the same."""

    of_parts: tuple[int, ...]
    """The stream of each part."""

    @classmethod
    def deal(cls, part_sizes: Sequence[int], group_size: int) -> "ParallelStreams":
        """Give each part, in order, to the stream that has the fewest values so far.

        `part_sizes`: the numbers of values. The more reducers the group has, the fewer streams lead to each.
        """
        enough = -(-MAX_STREAMS // max(1, group_size - 1))
        num_values, largest = sum(part_sizes), max(part_sizes, default=0)
        worth = num_values // max(MIN_VALUES_PER_STREAM, MIN_PARTS_PER_STREAM * largest, 1)
        loads = [0] * max(1, min(enough, worth))
        of_parts = []
        for size in part_sizes:
            stream = loads.index(min(loads))
            loads[stream] += size
            of_parts.append(stream)
        return cls(tuple(of_parts))

    @property
    def numbers(self) -> range:
        """Streams in use; none if there are no parts."""
        return range(max(self.of_parts, default=-1) + 1)

    def part_indices(self, stream: int) -> tuple[int, ...]:
        """Return which of the reducer's parts a stream carries, in order."""
        return tuple(index for index, of_part in enumerate(self.of_parts) if of_part == stream)


async def in_turn(sources: Sequence[AsyncGenerator[Item, None]], turns: Sequence[int]) -> AsyncGenerator[Item, None]:
    """Yield one item of a source per turn, until one whose turn it is has ended; all are read at the same time.

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
        for turn in turns:
            if (outcome := await queues[turn].get()) is None:
                return
            item, error = outcome
            if error is not None:
                raise error
            yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
