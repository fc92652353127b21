"""Streams that say nothing, and streams of one peer, as real asyncio streams."""

import asyncio
from types import SimpleNamespace

import pytest

from pipelines.core.swarm.streams.bounded import BegunReader, bounded_answer
from pipelines.core.swarm.streams.quotas import Quota

INFO = SimpleNamespace(peer_id="ann", addr="/ip4/203.0.113.7/tcp/1")


async def streams_to(answer, numbers, talk):
    async def accept(reader, writer):
        await answer(INFO, reader, writer)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(numbers)]
        answers = await talk(opened)
        for _, writer in opened:
            writer.close()
    return answers


async def echo(info, reader, writer):
    writer.write(await reader.readexactly(5))


def test_a_stream_on_which_nothing_comes_is_closed_and_its_place_is_free_again():
    places = Quota("streams", per_peer=8, in_all=8)

    async def stay_silent(opened):
        return await asyncio.gather(*(reader.read() for reader, _ in opened))

    answers = asyncio.run(streams_to(bounded_answer(echo, places, 0.05), 3, stay_silent))
    assert answers == [b""] * 3 and places.taken == 0


def test_a_peer_has_so_many_streams_and_no_more_while_they_last():
    places = Quota("streams", per_peer=2, in_all=8)

    async def speak_late(opened):
        third = await opened[2][0].read()  # refused while the other two are open
        for _, writer in opened[:2]:
            writer.write(b"hello")
        return [*await asyncio.gather(*(reader.read() for reader, _ in opened[:2])), third]

    answers = asyncio.run(streams_to(bounded_answer(echo, places, 60.0), 3, speak_late))
    assert answers == [b"hello", b"hello", b""] and places.taken == 0


@pytest.mark.parametrize("sizes", [(1, 4), (2, 3), (5,)])
def test_what_was_read_first_comes_first(sizes):
    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(b"ello")
        begun = BegunReader(b"h", reader)
        return b"".join([await begun.readexactly(size) for size in sizes])

    assert asyncio.run(read()) == b"hello"
