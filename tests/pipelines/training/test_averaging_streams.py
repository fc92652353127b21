"""No last message of a stream between peers is lost, however late it is read; a state that ends early is noticed."""

import asyncio
from typing import AsyncIterator  # noqa: UP035 - hivemind recognises typing's name alone

import pytest
from hivemind.p2p import P2P, P2PContext, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2

from pipelines.training.averaging_streams import (
    ReadingStub,
    first_messages,
    until_farewell,
    until_reader_closes,
    with_farewell,
)

# hivemind 1.1.12 finds its daemon's executable in an old-fashioned way.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

# More than sockets and reader buffer, less than the daemon's window: the end waits in the reader's daemon.
NUM_PARTS, PART = 12, bytes(2**16)


async def parts(count=NUM_PARTS):
    for _ in range(count):
        yield averaging_pb2.DownloadData(tensor_part=runtime_pb2.Tensor(buffer=PART))


class Donor(ServicerBase):
    """Writes all at once; tells when its streams are closed."""

    def __init__(self):
        self.closed = asyncio.Event()

    async def rpc_parts(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        try:
            async for message in until_reader_closes(with_farewell(parts())):
                yield message
        finally:
            self.closed.set()

    async def rpc_broken_parts(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        async for message in parts(count=3):
            yield message


def read_from_donor(method, read, wait_seconds=0.0):
    """Open a stream between two libp2p daemons, wait, read it all; return the messages and the donor."""

    async def run():
        donor, first = Donor(), await P2P.create()
        second = await P2P.create(initial_peers=await first.get_visible_maddrs())
        try:
            await donor.add_p2p_handlers(first)
            stub = ReadingStub(Donor.get_stub(second, first.peer_id), method, read)
            stream = await getattr(stub, method)(averaging_pb2.DownloadRequest())
            # Not an event to wait for: the time that a busy reader leaves its messages lying.
            await asyncio.sleep(wait_seconds)
            messages = [message async for message in stream]
            if method == "rpc_parts":
                await asyncio.wait_for(donor.closed.wait(), timeout=10)
            return messages
        finally:
            await second.shutdown()
            await first.shutdown()

    return asyncio.run(run())


@pytest.mark.slow
def test_a_late_reader_gets_every_part_and_its_closing_ends_the_donors_stream():
    messages = read_from_donor("rpc_parts", until_farewell, wait_seconds=1.0)
    assert [message.tensor_part.buffer for message in messages] == [PART] * NUM_PARTS


@pytest.mark.slow
def test_a_reader_that_knows_the_number_closes_the_stream_after_the_last():
    all_sent = asyncio.Event()
    all_sent.set()
    messages = read_from_donor(
        "rpc_parts", lambda stream: first_messages(stream, NUM_PARTS, all_sent), wait_seconds=1.0
    )
    assert len(messages) == NUM_PARTS


@pytest.mark.slow
def test_a_state_that_ends_without_farewell_is_not_taken_for_whole():
    with pytest.raises(ConnectionError, match="ended before the whole state had arrived"):
        read_from_donor("rpc_broken_parts", until_farewell)


def test_our_own_side_is_sent_before_the_stream_is_closed():
    events = []

    async def answers():
        try:
            for number in range(3):
                yield number
        finally:
            events.append("closed")

    async def run():
        all_sent = asyncio.Event()
        reading = asyncio.create_task(collect(first_messages(answers(), 2, all_sent), events))
        while events != [0, 1]:
            await asyncio.sleep(0)
        all_sent.set()
        await reading

    async def collect(stream, into):
        async for number in stream:
            into.append(number)

    asyncio.run(run())
    assert events == [0, 1, "closed"]
