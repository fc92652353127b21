"""No last message of a stream between peers is lost, however late it is read."""

import asyncio
from typing import AsyncIterator  # noqa: UP035 - hivemind recognises typing's name alone

import pytest
from hivemind.p2p import P2P, P2PContext, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2

from pipelines.core.averaging.wire.streams import (
    first_messages,
    held_back,
    open_greeted,
    until_reader_closes,
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
            async for message in until_reader_closes(parts()):
                yield message
        finally:
            self.closed.set()


def read_from_donor(read, wait_seconds):
    """Open a stream between two libp2p daemons, wait, read it all; return the messages and the donor."""

    async def run():
        donor, first = Donor(), await P2P.create()
        second = await P2P.create(initial_peers=await first.get_visible_maddrs())
        try:
            await donor.add_p2p_handlers(first)
            stub = Donor.get_stub(second, first.peer_id)
            stream = read(await stub.rpc_parts(averaging_pb2.DownloadRequest()))
            # Not an event to wait for: the time that a busy reader leaves its messages lying.
            await asyncio.sleep(wait_seconds)
            messages = [message async for message in stream]
            await asyncio.wait_for(donor.closed.wait(), timeout=10)
            return messages
        finally:
            await second.shutdown()
            await first.shutdown()

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.swarm
def test_a_late_reader_gets_every_part_and_its_closing_ends_the_donors_stream():
    all_sent = asyncio.Event()
    all_sent.set()
    messages = read_from_donor(lambda stream: first_messages(stream, NUM_PARTS, all_sent), wait_seconds=1.0)
    assert [message.tensor_part.buffer for message in messages] == [PART] * NUM_PARTS


class Listener:
    """The other side of streams: ignores the first openings, answers later ones, keeps what is written after that."""

    def __init__(self, num_ignored=0, greeting="welcome"):
        self.num_ignored, self.greeting = num_ignored, greeting
        self.num_opened = self.num_closed = 0
        self.received = []

    async def call(self, messages):
        self.num_opened += 1
        return self._stream(messages, is_deaf=self.num_opened <= self.num_ignored)

    async def _stream(self, messages, is_deaf):
        try:
            assert await anext(messages) == "hello"
            if is_deaf:
                await asyncio.Event().wait()
            yield self.greeting
            self.received = [message async for message in messages]
            yield "answer"
        finally:
            self.num_closed += 1


def open_stream(listener, attempts=3):
    async def run():
        stream = await open_greeted(
            listener.call, hello="hello", messages=letters(), is_greeting=lambda message: message == "welcome",
            seconds=0.3, attempts=attempts,
        )  # fmt: skip
        return [answer async for answer in stream]

    return asyncio.run(run())


async def letters():
    for letter in "abc":
        yield letter


@pytest.mark.parametrize("num_ignored", [0, 1, 2])
def test_a_stream_that_does_not_open_is_opened_again_and_nothing_is_lost_or_comes_twice(num_ignored):
    listener = Listener(num_ignored)
    assert open_stream(listener) == ["answer"]
    assert listener.received == list("abc")
    assert listener.num_opened == listener.num_closed == num_ignored + 1


def test_opening_is_given_up_after_so_many_attempts():
    listener = Listener(num_ignored=99)
    with pytest.raises(ConnectionError, match=r"did not open in 3 attempts; the last one: no answer in 0.3 s\."):
        open_stream(listener)
    assert listener.num_opened == listener.num_closed == 3


def test_a_peer_that_refuses_is_not_asked_again():
    listener = Listener(greeting="go away")
    with pytest.raises(ConnectionRefusedError, match="A peer refused a stream: go away"):
        open_stream(listener)
    assert listener.num_opened == 1


def test_answers_are_held_back_until_all_is_received():
    async def run():
        received, last, seen = asyncio.Event(), asyncio.Event(), []

        async def answers():
            yield "first"
            await last.wait()
            yield "last"

        reading = asyncio.create_task(collect(held_back(answers(), received), seen))
        await asyncio.sleep(0.01)
        assert seen == []
        received.set()
        while seen != ["first"]:
            await asyncio.sleep(0)
        last.set()
        await reading
        return seen

    async def collect(stream, into):
        async for answer in stream:
            into.append(answer)

    assert asyncio.run(run()) == ["first", "last"]


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
