"""Parallel streams: parts are dealt out, answers put together again; a reducer takes every stream of a sender once."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from functools import partial

import pytest
import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.compression import NoCompression, serialize_torch_tensor
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2

from pipelines.core.admission.averaging_gate import AveragingGate
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.reducing_end import RoundMemory
from pipelines.core.averaging.round_state import RoundState
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.sending_end import stream_hello
from pipelines.core.averaging.wire import streams
from pipelines.core.averaging.wire.streams import (
    MAX_STREAMS,
    MIN_VALUES_PER_STREAM,
    ParallelStreams,
    in_turn,
)
from pipelines.core.swarm.upload_limit import pass_bytes

REDUCER, SENDER = PeerID(b"reducer"), PeerID(b"sender")
GROUP = b"group"
LARGE = MIN_VALUES_PER_STREAM
FOUR_STREAMS = ParallelStreams((0, 1, 2, 3) * 10)
SECONDS = 0.5
UNSIGNED = AveragingGate(None, "test", None).signatures_of(())


def loads(streams, part_sizes):
    return [sum(part_sizes[index] for index in streams.part_indices(stream)) for stream in streams.numbers]


@pytest.mark.parametrize(
    ("part_sizes", "group_size", "num_streams"),
    [
        ((), 2, 0),
        ((0, 0), 2, 1),
        ((5,), 2, 1),
        ((LARGE,) * 15, 2, 1),
        ((LARGE,) * 16, 2, 2),
        ((LARGE,) * 1000, 2, MAX_STREAMS),
        ((LARGE,) * 1000, 4, 3),
        ((LARGE,) * 1000, 9, 1),
        ((LARGE,) * 1000, 100, 1),
        ((100,) * 1000, 2, 1),
    ],
)
def test_what_is_small_and_who_has_many_reducers_needs_fewer_streams(part_sizes, group_size, num_streams):
    streams = ParallelStreams.deal(part_sizes, group_size)
    assert len(streams.numbers) == num_streams
    dealt = sorted(index for stream in streams.numbers for index in streams.part_indices(stream))
    assert dealt == list(range(len(part_sizes)))


def test_large_and_small_parts_in_turn_load_all_streams_alike():
    part_sizes = (LARGE, 1024) * 100  # weights and biases
    found = loads(ParallelStreams.deal(part_sizes, 2), part_sizes)
    assert len(found) == MAX_STREAMS
    assert max(found) - min(found) <= LARGE


def test_the_slowest_link_waits_a_small_share_of_the_round_for_a_streams_next_part():
    for num_parts in range(1, 200):
        streams = ParallelStreams.deal((LARGE,) * num_parts, 2)
        assert len(streams.numbers) == 1 or len(streams.numbers) <= num_parts / 8


async def numbers(streams, stream, ended=None, fails_at=None):
    try:
        for index in streams.part_indices(stream):
            if index == fails_at:
                raise ConnectionResetError(f"at {index}")
            await asyncio.sleep(0.001 * (len(streams.numbers) - stream))  # the last stream is the fastest
            yield index
    finally:
        if ended is not None:
            ended.append(stream)


def read_all(streams, **kwargs):
    return in_turn([numbers(streams, stream, **kwargs) for stream in streams.numbers], streams.of_parts)


@pytest.mark.parametrize("of_parts", [(), (0,), (0, 1, 2, 3, 0, 1, 2), (0, 1, 1, 0, 2, 3, 3, 3, 3, 3, 0)])
def test_what_was_dealt_out_comes_back_in_order(of_parts):
    async def run():
        return [index async for index in read_all(ParallelStreams(of_parts))]

    assert asyncio.run(run()) == list(range(len(of_parts)))


def test_what_came_before_a_failed_stream_is_used_and_all_others_are_closed():
    ended, received = [], []

    async def run():
        async for index in read_all(FOUR_STREAMS, ended=ended, fails_at=10):
            received.append(index)

    with pytest.raises(ConnectionResetError, match="at 10"):
        asyncio.run(run())
    assert received == list(range(10))
    assert sorted(ended) == [0, 1, 2, 3]


def test_all_streams_are_closed_when_nobody_reads_on():
    ended = []

    async def run():
        answers = read_all(FOUR_STREAMS, ended=ended)
        assert await anext(answers) == 0
        await answers.aclose()
        return sorted(ended)

    assert asyncio.run(run()) == [0, 1, 2, 3]


@pytest.fixture
def make_runner(monkeypatch):
    """A reducer of 32 parts for one sender, four streams; it dials nobody, so all it needs of the network is a name."""
    monkeypatch.setattr(streams, "MIN_VALUES_PER_STREAM", 1)

    def make(signatures=UNSIGNED):
        state = RoundState.of(
            peer_id=REDUCER, group_id=GROUP, modes=dict.fromkeys((REDUCER, SENDER), AveragingMode.NODE),
            tensors=[torch.ones(1024) for _ in range(64)], peer_fractions=(0.5, 0.5), sender_timeout=SECONDS,
            reducer_timeout=2 * SECONDS, compression=NoCompression(), part_size_bytes=4096, rule=AggregationRule(),
            count_bytes=lambda number: None, signatures=signatures, is_last_attempt=False, stub_of=None,
        )  # fmt: skip
        return TrustedAllReduceRunner(
            state, recorded_weights={}, memory=RoundMemory(), pass_bytes=partial(pass_bytes, None)
        )

    return make


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
async def open_streams(runner, *stream_indices):
    """Have some streams of the sender open."""
    streams = [asyncio.ensure_future(codes_of_answers(runner, stream_hello(GROUP, n))) for n in stream_indices]
    async with asyncio.timeout(10):
        while runner._reducing._open_streams[SENDER] != set(stream_indices):
            await asyncio.sleep(0.001)
    try:
        yield
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.parametrize("field", [b"", b"\x04", b"\xff", b"\x00\x00", SENDER.to_bytes()])
def test_a_stream_that_does_not_exist_is_refused(make_runner, field):
    async def run():
        hello = stream_hello(GROUP, 0)
        hello.peer_id = field
        return await codes_of_answers(make_runner(), hello)

    assert asyncio.run(run()) == [averaging_pb2.PROTOCOL_VIOLATION]


def test_a_stream_that_is_open_is_not_opened_again_and_its_opener_is_named(make_runner):
    async def run():
        runner = make_runner()
        async with open_streams(runner, 1, 2):
            assert not runner.offences
            return await codes_of_answers(runner, stream_hello(GROUP, 1)), runner.offences

    codes, offences = asyncio.run(run())
    assert codes == [averaging_pb2.ACCEPTED, averaging_pb2.PROTOCOL_VIOLATION]
    assert (SENDER, Misbehaviour.REPLAYED) in offences


def test_a_sender_that_has_not_signed_its_part_is_left_out_and_named(make_runner):
    class Forged:
        """Signatures of which none is right."""

        def sign(self, statement):
            return b"signature"

        def verify(self, peer_id, statement, signature):
            return False

        has_signed = verify

    async def run():
        runner = make_runner(Forged())
        codes = await codes_of_answers(runner, stream_hello(GROUP, 0))
        assert runner._reducing._all_begun.is_set(), "nobody waits for its other streams"
        return codes, runner.offences, runner.banned_senders

    codes, offences, banned = asyncio.run(run())
    assert codes == [averaging_pb2.ACCEPTED, averaging_pb2.PROTOCOL_VIOLATION]
    assert offences == {(SENDER, Misbehaviour.UNSIGNED)} and banned == {SENDER}


@pytest.mark.parametrize("num_opened", [0, 3, 4])
def test_a_sender_that_does_not_open_all_its_streams_is_given_up(make_runner, num_opened):
    async def run():
        runner = make_runner()
        async with open_streams(runner, *range(num_opened)):
            await runner._reducing.end_unbegun_senders()
            return SENDER in runner.banned_senders

    assert asyncio.run(run()) == (num_opened < 4)


@pytest.mark.parametrize("num_opened", [0, 1])
def test_a_sender_that_no_stream_reaches_is_lost_at_once_unless_its_own_have_begun(make_runner, num_opened):
    async def run():
        runner = make_runner()
        async with open_streams(runner, *range(num_opened)):
            runner._reducing.end_unbegun(SENDER)
            return set(runner.lost_senders), set(runner.offences)

    lost, offences = asyncio.run(run())
    assert (lost, offences) == ((set(), set()) if num_opened else ({SENDER}, {(SENDER, Misbehaviour.SILENT)}))


def test_nobody_is_late_once_a_reducer_waits_for_no_part(make_runner):
    async def run():
        runner = make_runner()
        reducer = runner._reducing.reducer
        late = []
        for part in range(len(reducer.part_shapes)):
            waiting = asyncio.create_task(reducer.accumulate_part(REDUCER, part, torch.ones(1024)))
            await asyncio.sleep(0.01)
            late.append(runner.late_senders)
            await asyncio.gather(waiting, reducer.accumulate_part(SENDER, part, torch.ones(1024)))
        return late, reducer.finished.is_set(), runner.late_senders

    late, is_finished, late_at_last = asyncio.run(run())
    assert late[-1] == {SENDER}
    assert is_finished and late_at_last == set()
