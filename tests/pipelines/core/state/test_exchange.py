"""The service that hands out a state, asked over real streams: who gets what, and for whom a snapshot stays."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
import torch
from hivemind.p2p import P2P
from made_up_states import made_up_state, sealed

from pipelines.core.state.download import DownloadLimits, StateDownload, manifest_request
from pipelines.core.state.exchange import LIMITS, SERVICE, Donors, StateService
from pipelines.core.state.snapshot import CHUNK_BYTES, StateSnapshot
from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.server import StreamServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.swarm,
    # hivemind 1.1.12 finds its daemon's executable in an old-fashioned way.
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),
]
HOST = "/ip4/127.0.0.1/tcp/0"
LARGE = ((512, 512), (7,))
SECONDS = 20.0


@contextlib.asynccontextmanager
async def donor_of(state):
    """Yield a peer that serves a state, and conversations of another peer with it."""
    answering = await P2P.create(host_maddrs=[HOST], startup_timeout=120)
    entries = [str(address) for address in await answering.get_visible_maddrs()]
    asking = await P2P.create(initial_peers=entries, host_maddrs=[HOST], startup_timeout=120)

    async def open_one(peer, _seconds):
        opened = await open_conversation(
            asking, peer, "birds", SERVICE, Introductions(None), most_tensor_bytes=CHUNK_BYTES
        )
        return opened[0]

    snapshot, manifest = sealed(state)
    service, server = StateService(snapshot), StreamServer(answering, "birds", Introductions(None), limits=LIMITS)
    service.shares = True
    await server.offer(service)
    try:
        async with contextlib.aclosing(Donors(open_one, SECONDS)) as donors:
            peer = answering.peer_id.to_base58()
            yield SimpleNamespace(
                peer=peer, service=service, snapshot=snapshot, manifest=manifest, donors=donors, server=server
            )
    finally:
        await server.leave(0)
        await asking.shutdown()
        await answering.shutdown()


async def until(is_so):
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.02)


def test_a_state_arrives_over_one_conversation_and_stays_no_longer_than_its_reader():
    async def work():
        target = StateSnapshot(made_up_state(seed=1, shapes=LARGE), "birds")
        async with donor_of(made_up_state(shapes=LARGE)) as donor:
            limits = DownloadLimits(chunk_seconds=SECONDS, job_seconds=60.0, job_bytes=4096)
            digest = donor.manifest.digest
            download = StateDownload(target, [donor.peer], donor.donors.ask, limits, digest=digest, epoch=3)
            assert await download.run() == donor.manifest
            assert donor.snapshot.is_held, "the reader may want more"
            assert len(donor.donors._all) == 1
            await donor.donors.aclose()
            await until(lambda: not donor.snapshot.is_held)
            return target, donor.snapshot, download.num_done

    target, given, num_done = asyncio.run(work())
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in given.tensors.items())
    assert num_done >= given.num_bytes


def test_a_peer_hands_out_nothing_before_it_shares_and_nothing_but_the_state_that_is_named():
    async def work():
        async with donor_of(made_up_state()) as donor:

            async def answer(digest):
                return b"".join([chunk async for chunk in donor.donors.ask(donor.peer, manifest_request(digest))])

            digest = donor.manifest.digest
            assert await answer("0" * 64) == b""
            assert await answer(digest) == donor.manifest.encode()
            donor.service.shares = False
            assert await answer(digest) == b""

    asyncio.run(work())


@pytest.mark.parametrize("request_", [{}, dict(want="tensors", digest="d", indices=[10**6])])
def test_a_request_that_is_none_is_refused(request_):
    async def work():
        async with donor_of(made_up_state()) as donor:
            with pytest.raises(Refusal, match="invalid"):
                await anext(donor.donors.ask(donor.peer, request_))

    asyncio.run(work())


def test_a_reader_that_stops_in_the_middle_lets_the_snapshot_go():
    async def work():
        async with donor_of(made_up_state(shapes=LARGE)) as donor:
            request = dict(want="tensors", digest=donor.manifest.digest, indices=[0])
            answer = donor.donors.ask(donor.peer, request)
            assert len(await anext(answer)) == CHUNK_BYTES
            assert donor.snapshot.is_held
            await answer.aclose()
            await until(lambda: not donor.snapshot.is_held)

    asyncio.run(work())


def test_who_wants_another_state_keeps_no_place_and_a_flood_of_refused_streams_is_closed_at_once():
    async def work():
        async with donor_of(made_up_state()) as donor:
            wrong = manifest_request("0" * 64)
            assert [chunk async for chunk in donor.donors.ask(donor.peer, wrong)] == []
            await until(lambda: not donor.server._answering)
            donor.server._most_ending = 1
            opened = [await donor.donors._open(donor.peer, SECONDS) for _ in range(LIMITS.streams_per_peer)]
            results = await asyncio.gather(
                *(donor.donors._open(donor.peer, SECONDS) for _ in range(8)), return_exceptions=True
            )
            assert all(isinstance(result, ConnectionError | Refusal) for result in results)
            assert donor.server._num_ending <= 1
            await asyncio.gather(*(conversation.close() for conversation in opened))

    asyncio.run(work())
