"""Streams between peers that are closed by their reader, so that no last message is lost.

The libp2p daemon under hivemind 1.1.12 may reset a stream when its writer closes it, and what the reader has not
fetched by then is gone: of 3,000 streams on a busy machine 2 lost their end. An averaging round loses its last part so,
or a peer misses the word that its group begins and both wait for a time-out. Here the writer stays until the reader has
closed the stream, who can tell which message is the last.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import Any, TypeVar

from hivemind.p2p.servicer import StubBase
from hivemind.proto import averaging_pb2

Message = TypeVar("Message")

SECONDS_FOR_A_READER = 30.0
"""How long a writer stays for a reader that does not close the stream; readers of this project always do."""


async def until_reader_closes(messages: AsyncIterable[Message], seconds: float = SECONDS_FOR_A_READER):  # noqa: ANN201
    """Yield all messages, then keep the stream open: when the reader closes it, hivemind cancels this generator."""
    async for message in messages:
        yield message
    await asyncio.sleep(seconds)


async def first_messages(
    stream: AsyncGenerator[Message, None], count: int, all_sent: asyncio.Event
) -> AsyncIterator[Message]:
    """Yield `count` messages, then close the stream, but not before our own side of it is `all_sent`."""
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


async def with_farewell(messages: AsyncIterable[averaging_pb2.DownloadData]) -> AsyncIterator[Any]:
    """Yield all parts of a state, then an empty one that says: this was all."""
    async for message in messages:
        yield message
    yield averaging_pb2.DownloadData()


async def until_farewell(stream: AsyncGenerator[averaging_pb2.DownloadData, None]) -> AsyncIterator[Any]:
    """Yield the parts of a state and close the stream.

    Raises:
        ConnectionError: the stream ended without a farewell, so parts may be missing.
    """
    try:
        async for message in stream:
            if message == averaging_pb2.DownloadData():
                return
            yield message
        raise ConnectionError("The donor's stream ended before the whole state had arrived.")
    finally:
        await stream.aclose()


class ReadingStub:
    """A hivemind stub, one of whose streams is read by a function of ours; all else is the stub's."""

    def __init__(self, stub: StubBase, method: str, read: Callable[[AsyncGenerator], AsyncIterator]) -> None:
        self._stub, self._method, self._read = stub, method, read

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stub, name)
        if name != self._method:
            return call

        async def call_and_read(*args: Any, **kwargs: Any) -> AsyncIterator:
            return self._read(await call(*args, **kwargs))

        return call_and_read
