"""Streams between peers that are closed by the reader, so that no final message is lost.

The libp2p daemon under hivemind 1.1.12 may reset a stream when its writer closes it, and what the reader has not
fetched by then is gone: of 3,000 streams on a busy machine 2 lost their end. An averaging round then loses its last
part, or a peer misses the start of its group and both wait for a time-out. Here the writer stays until the reader,
which can tell which message is the last, has closed the stream.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
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
