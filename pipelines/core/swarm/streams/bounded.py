"""What anybody may open of a node's streams for hivemind's calls: counted by caller, and closed if nothing is said."""

import asyncio
from collections.abc import Awaitable, Callable

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.stream_clients import stream_client_of

STREAMS_PER_PEER, STREAMS_PER_ADDRESS, STREAMS = 64, 512, 2048
"""Many peers of one lab share an address; a peer has a few streams for each round and each state."""

SECONDS_TO_SPEAK = 30.0
"""After which a stream is closed on which nothing has come: who averages greets at once."""


class BegunReader:
    """Reads a stream whose first bytes have been read already."""

    def __init__(self, first: bytes, reader: "asyncio.StreamReader | BegunReader") -> None:
        self._first, self._reader = first, reader

    async def readexactly(self, number: int) -> bytes:
        """See `StreamReader.readexactly`."""
        first, self._first = self._first[:number], self._first[number:]
        return first + await self._reader.readexactly(number - len(first)) if len(first) < number else first


Answer = Callable[[StreamInfo, asyncio.StreamReader | BegunReader, asyncio.StreamWriter], Awaitable[None]]


def bounded_answer(answer: Answer, places: Quota, seconds_to_speak: float = SECONDS_TO_SPEAK) -> Answer:
    """Return what answers a stream while its peer has a place, as soon as the peer has said something."""

    async def answer_within_bounds(
        info: StreamInfo, reader: asyncio.StreamReader | BegunReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            with places.taken_during(stream_client_of(info.peer_id, str(info.addr)), 1):
                first = await asyncio.wait_for(reader.readexactly(1), seconds_to_speak)
                await answer(info, BegunReader(first, reader), writer)
        except (Refusal, TimeoutError, asyncio.IncompleteReadError):
            writer.close()

    return answer_within_bounds


def bound_streams(p2p: P2P) -> None:
    """Bound the streams of all calls that this process offers through `p2p` from now on."""
    if hasattr(p2p, "places"):
        return
    places = Quota("streams", per_peer=STREAMS_PER_PEER, per_address=STREAMS_PER_ADDRESS, in_all=STREAMS, code="busy")
    add = p2p.add_binary_stream_handler

    async def add_bounded(name: str, handler: Answer, balanced: bool = False) -> None:
        await add(name, bounded_answer(handler, places), balanced)

    p2p.places, p2p.add_binary_stream_handler = places, add_bounded
