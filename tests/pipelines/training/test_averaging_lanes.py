"""Lanes: parts are dealt out and their answers put together again; a reducer takes every lane of a sender once."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace

import pytest
import torch
from hivemind.compression import NoCompression, serialize_torch_tensor
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2

from pipelines.training.averaging_lanes import MAX_LANES, Lane, in_turn
from pipelines.training.averaging_runner import RoundMemory, TrustedAllReduceRunner, _hello
from pipelines.training.robust_aggregation import AggregationRule
from pipelines.training.suspects import Offence

REDUCER, SENDER = PeerID(b"reducer"), PeerID(b"sender")
GROUP = b"group"
SECONDS = 0.5


@pytest.mark.parametrize(
    ("num_parts", "group_size", "num_lanes"),
    [(0, 2, 1), (1, 2, 1), (3, 2, 1), (4, 2, 2), (1000, 2, MAX_LANES), (1000, 4, 3), (1000, 9, 1), (1000, 100, 1)],
)
def test_what_is_small_and_who_has_many_reducers_needs_fewer_lanes(num_parts, group_size, num_lanes):
    lanes = Lane.all_for(num_parts, group_size)
    assert len(lanes) == num_lanes
    assert sorted(index for lane in lanes for index in lane.part_indices(num_parts)) == list(range(num_parts))


async def numbers(lane, num_parts, ended=None, fails_at=None):
    try:
        for index in lane.part_indices(num_parts):
            if index == fails_at:
                raise ConnectionResetError(f"at {index}")
            await asyncio.sleep(0.001 * (lane.num_lanes - lane.number))  # the last lane is the fastest
            yield index
    finally:
        if ended is not None:
            ended.append(lane.number)


@pytest.mark.parametrize("num_parts", [0, 1, 7, 8, 23])
def test_what_was_dealt_out_comes_back_in_order(num_parts):
    async def run():
        return [index async for index in in_turn([numbers(Lane(n, 4), num_parts) for n in range(4)])]

    assert asyncio.run(run()) == list(range(num_parts))


def test_what_came_before_a_failed_lane_is_used_and_all_others_are_closed():
    ended, received = [], []

    async def run():
        async for index in in_turn([numbers(Lane(n, 4), 1000, ended, fails_at=10) for n in range(4)]):
            received.append(index)

    with pytest.raises(ConnectionResetError, match="at 10"):
        asyncio.run(run())
    assert received == list(range(10))
    assert sorted(ended) == [0, 1, 2, 3]


def test_all_lanes_are_closed_when_nobody_reads_on():
    ended = []

    async def run():
        answers = in_turn([numbers(Lane(n, 4), 1000, ended) for n in range(4)])
        assert await anext(answers) == 0
        await answers.aclose()
        return sorted(ended)

    assert asyncio.run(run()) == [0, 1, 2, 3]


def make_runner():
    """A reducer of 8 parts for one sender, four lanes; it dials nobody, so all it needs of the network is a name."""
    return TrustedAllReduceRunner(
        p2p=SimpleNamespace(peer_id=REDUCER), servicer_type=TrustedAllReduceRunner, prefix="test", group_id=GROUP,
        tensors=[torch.ones(1024) for _ in range(16)], ordered_peer_ids=[REDUCER, SENDER], peer_fractions=(0.5, 0.5),
        sender_timeout=SECONDS, reducer_timeout=2 * SECONDS, compression=NoCompression(), part_size_bytes=4096,
        rule=AggregationRule(), recorded_weights=None, memory=RoundMemory(), notices_replays=True,
        answers_are_averages=True, count_bytes=lambda number: None,
    )  # fmt: skip


async def codes_of_answers(runner, hello):
    """Open a stream, send one part and no more, and yield the codes of the answers."""

    async def messages():
        yield hello
        part = serialize_torch_tensor(torch.randn(1024))
        yield averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, tensor_part=part, weight=1.0)
        await asyncio.sleep(60)

    async with aclosing(runner.rpc_aggregate_part(messages(), P2PContext("", REDUCER, SENDER))) as answers:
        return [answer.code async for answer in answers]


@asynccontextmanager
async def open_lanes(runner, *lane_numbers):
    """Have some lanes of the sender open."""
    streams = [asyncio.ensure_future(codes_of_answers(runner, _hello(GROUP, Lane(n, 4)))) for n in lane_numbers]
    async with asyncio.timeout(10):
        while runner._lanes_open[SENDER] != set(lane_numbers):
            await asyncio.sleep(0.001)
    try:
        yield
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.parametrize("field", [b"", b"\x04", b"\xff", b"\x00\x00", SENDER.to_bytes()])
def test_a_lane_that_does_not_exist_is_refused(field):
    async def run():
        hello = _hello(GROUP, Lane(0, 4))
        hello.peer_id = field
        return await codes_of_answers(make_runner(), hello)

    assert asyncio.run(run()) == [averaging_pb2.PROTOCOL_VIOLATION]


def test_a_lane_that_is_open_is_not_opened_again_and_its_opener_is_named():
    async def run():
        runner = make_runner()
        async with open_lanes(runner, 1, 2):
            assert not runner.offences
            return await codes_of_answers(runner, _hello(GROUP, Lane(1, 4))), runner.offences

    codes, offences = asyncio.run(run())
    assert codes == [averaging_pb2.ACCEPTED, averaging_pb2.PROTOCOL_VIOLATION]
    assert (SENDER, Offence.REPLAYED) in offences


@pytest.mark.parametrize("num_opened", [0, 3, 4])
def test_a_sender_that_does_not_open_all_its_lanes_is_given_up(num_opened):
    async def run():
        runner = make_runner()
        async with open_lanes(runner, *range(num_opened)):
            await runner._handle_missing_senders()
            return SENDER in runner.banned_senders

    assert asyncio.run(run()) == (num_opened < 4)
