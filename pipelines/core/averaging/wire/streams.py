"""Streams between peers: several from a sender to a reducer, and closed by the reader, so that no message is lost.

The libp2p daemon under hivemind 1.1.12 may reset a stream when its writer closes it, and what the reader has not
fetched by then is gone: of 3,000 streams on a busy machine 2 lost their end. An averaging round then loses its last
part, or a peer misses the start of its group and both wait for a time-out. Here the writer stays until the reader,
which can tell which message is the last, has closed the stream.

Streams of the daemon begin with a window of 256 KiB, and window updates queue behind all other traffic in the same
direction: at 100 Mbit/s and 50 ms a single stream left the link idle for a third of the time. Several streams have more
in flight, and do not stall at the same moment.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from hivemind.p2p import P2PDaemonError

logger = logging.getLogger(__name__)

Message = TypeVar("Message")

SECONDS_FOR_A_READER = 30.0
"""How long a writer waits for a reader that does not close the stream; readers of this project always do."""

PAUSE_SECONDS = 0.25
"""Pause between two attempts to open a stream."""

FIRST_SHARE = 0.25
"""Share of the time for opening a stream that the first attempt has, twice as much each further one."""

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


async def until_reader_closes(
    messages: AsyncIterable[Message], seconds: float = SECONDS_FOR_A_READER
) -> AsyncGenerator[Message, None]:
    """Yield all messages, then keep the stream open: when the reader closes it, hivemind cancels this generator."""
    async for message in messages:
        yield message
    await asyncio.sleep(seconds)


async def first_messages(
    stream: AsyncGenerator[Message, None], count: int, all_sent: asyncio.Event
) -> AsyncGenerator[Message, None]:
    """Yield `count` messages, then close the stream, but not before our own side is `all_sent`."""
    num_received = 0
    try:
        async for message in stream:
            num_received += 1
            yield message
            if num_received == count:
                await all_sent.wait()
                return
    finally:
        await stream.aclose()


async def open_greeted(
    call: Callable[[AsyncIterator[Message]], Awaitable[AsyncGenerator[Message, None]]],
    *,
    hello: Message,
    messages: AsyncIterator[Message],
    is_greeting: Callable[[Message], bool],
    seconds: float,
    attempts: int,
) -> AsyncGenerator[Message, None]:
    """Open a stream, say hello, wait for the answer; then write `messages` to it and return the messages to read.

    Between two busy libp2p daemons a stream occasionally never opens, and neither side is told. No message is written
    until the other side has answered, so a stream that has not opened after `seconds` can be closed and retried without
    losing or repeating anything. The first attempts are shorter: to a peer that has just died the next one is refused.

    Raises:
        ConnectionError: no attempt was answered, or the answer was not a greeting.
    """
    for attempt in range(1, attempts + 1):
        greeted, stream, reason = asyncio.Event(), None, "it was closed"
        patience = seconds * min(1.0, FIRST_SHARE * 2.0 ** (attempt - 1))
        try:
            async with asyncio.timeout(patience):
                stream = await call(_after_greeting(hello, messages, greeted))
                async for answer in stream:
                    if not is_greeting(answer):
                        raise ConnectionRefusedError(f"A peer refused a stream: {str(answer).strip()[:100]}")
                    greeted.set()
                    return stream
        except TimeoutError:
            reason = f"no answer in {patience:.1f} s"
        except (ConnectionResetError, asyncio.IncompleteReadError, P2PDaemonError) as error:
            reason = repr(error)
        finally:
            if stream is not None and not greeted.is_set():
                await stream.aclose()
        logger.debug("A stream to a peer did not open (%d of %d attempts): %s", attempt, attempts, reason)
        await asyncio.sleep(min(PAUSE_SECONDS, seconds))
    raise ConnectionError(f"A stream to a peer did not open in {attempts} attempts; the last one: {reason}.")


async def _after_greeting(
    hello: Message, messages: AsyncIterator[Message], greeted: asyncio.Event
) -> AsyncIterator[Message]:
    yield hello
    await greeted.wait()
    async for message in messages:
        yield message


async def held_back(answers: AsyncIterator[Message], until: asyncio.Event) -> AsyncGenerator[Message, None]:
    """Collect answers from now on and yield them after an event: a client writes first, then reads."""
    collected: asyncio.Queue[Message | None] = asyncio.Queue()

    async def collect() -> None:
        try:
            async for answer in answers:
                collected.put_nowait(answer)
        finally:
            until.set()
            collected.put_nowait(None)

    collecting = asyncio.create_task(collect())
    try:
        await until.wait()
        while (answer := await collected.get()) is not None:
            yield answer
        await collecting
    finally:
        collecting.cancel()


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


async def in_turn(
    sources: Sequence[AsyncGenerator[Message, None]], turns: Sequence[int]
) -> AsyncGenerator[Message, None]:
    """Yield one item of a source per turn, until one whose turn it is has ended; all are read at the same time.

    Raises:
        Exception: what a source has raised, when it is that source's turn.
    """
    queues: list[asyncio.Queue] = [asyncio.Queue(maxsize=1) for _ in sources]

    async def read(source: AsyncGenerator[Message, None], queue: asyncio.Queue) -> None:
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


class ProportionalOrder:
    """Passes one part after the other, first those whose reducers have got the smallest part of their share.

    A reducer answers a part when all senders' have come, so answers flow from the start only if parts do. If streams
    took equal turns, the parts of small shares would be through early, and those of a helper, which reduces nearly
    everything, late: with four uplinks of 15 Mbit/s, its answers to the last third of the vector came after all was
    sent.
    """

    def __init__(self, pass_bytes: Callable[[int], Awaitable[None]]) -> None:
        """`pass_bytes` waits until so many bytes may be sent."""
        self._pass_bytes, self._arrivals = pass_bytes, itertools.count()
        self._waiting: dict[tuple[float, int], asyncio.Future[None]] = {}
        self._passing: tuple[float, int] | None = None

    async def pass_part(self, number: int, progress: float) -> None:
        """Wait until a part of so many bytes may be sent, after which its reducer has `progress` of its share."""
        place = (progress, next(self._arrivals))
        turn = self._waiting[place] = asyncio.get_running_loop().create_future()
        self._call_next()
        try:
            await turn
            await self._pass_bytes(number)
        finally:
            self._waiting.pop(place, None)
            if self._passing == place:
                self._passing = None
            self._call_next()

    def _call_next(self) -> None:
        if self._passing is None and self._waiting:
            self._passing = min(self._waiting)
            if not (turn := self._waiting[self._passing]).done():
                turn.set_result(None)
