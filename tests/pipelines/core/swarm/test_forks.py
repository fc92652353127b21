"""What hivemind's processes leave behind goes away: garbage in forks of a large process, and calls that have ended."""

import asyncio
import gc
import multiprocessing
import sys
import uuid
import weakref
from types import SimpleNamespace

import pytest
import torch
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.utils import write_unsigned_varint
from hivemind.proto import p2pd_pb2

from pipelines.core.swarm.forks import forget_ended_calls, left_out_of_forks, set_aside_what_exists


class Holder:
    """Refers to itself, as what hivemind leaves behind does, and could hold a pipe."""

    def __init__(self):
        self.itself = self


def is_freed_in_time(sets_inherited_aside, answer):
    if sets_inherited_aside:
        set_aside_what_exists()
    holder = Holder()
    seen = weakref.ref(holder)
    gc.collect(1)  # twice, and it counts as one that stays
    gc.collect(1)
    del holder
    kept = [[] for _ in range(400_000)]  # less than a quarter of what is inherited, and enough for a full collection
    answer.send(seen() is None)
    del kept


@pytest.mark.parametrize("sets_inherited_aside", [True, False])
def test_a_fork_of_a_large_process_frees_garbage_once_what_it_has_inherited_is_set_aside(sets_inherited_aside):
    inherited = [[] for _ in range(2_000_000)]
    gc.collect()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=is_freed_in_time, args=(sets_inherited_aside, theirs))
    process.start()
    assert ours.poll(60) and ours.recv() is sets_inherited_aside
    process.join()
    del inherited


def tell_values(tensors, answer):
    answer.send([(tensor.min().item(), tensor.max().item()) for tensor in tensors])


def values_in_a_fork(tensors):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=tell_values, args=(tensors, theirs))
    process.start()
    assert ours.poll(60)
    process.join()
    return ours.recv()


def test_tensors_left_out_of_forks_are_zeros_in_them_and_only_there():
    left_out, shared, other = (torch.ones(2**20) for _ in range(3))
    shared.share_memory_()
    with left_out_of_forks([left_out[:100], shared, torch.ones(3)]):
        seen = values_in_a_fork([left_out[2**10 : -(2**10)], shared, other])
    assert seen == ([(0.0, 0.0), (1.0, 1.0), (1.0, 1.0)] if sys.platform == "linux" else [(1.0, 1.0)] * 3)
    assert left_out.min() == 1.0
    assert values_in_a_fork([left_out]) == [(1.0, 1.0)], "a later fork has the values"


class Wire:
    """Collects what is written to a stream."""

    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data

    async def drain(self):
        pass


async def read_by(control, *messages):
    """Let hivemind's reader of the daemon's messages read these, and what they begin run a little."""
    reader = asyncio.StreamReader()
    for message in messages:
        data, wire = message.SerializeToString(), Wire()
        await write_unsigned_varint(wire, len(data))
        reader.feed_data(wire.written + data)
        await asyncio.sleep(0)
    reader.feed_eof()
    await control._read_from_persistent_conn(reader)
    await asyncio.sleep(0.05)


def test_a_call_is_forgotten_when_it_is_answered_cancelled_or_for_nobody():
    async def answer(data, caller):
        return data

    async def never_answer(data, caller):
        await asyncio.sleep(3600)

    def call(number, name):
        request = p2pd_pb2.CallUnaryRequest(peer=b"\x12\x20" + bytes(32), proto=name, data=b"question")
        return p2pd_pb2.PersistentConnectionResponse(callId=uuid.UUID(int=number).bytes, requestHandling=request)

    def cancel(number):
        call_id = uuid.UUID(int=number).bytes
        return p2pd_pb2.PersistentConnectionResponse(callId=call_id, cancel=p2pd_pb2.Cancel())

    async def talk():
        control = ControlClient(DaemonConnector(), _initialized_with_create=True)
        for _ in range(2):
            forget_ended_calls(SimpleNamespace(_client=SimpleNamespace(control=control)))
        control.unary_handlers = dict(answer=answer, never=never_answer)
        await read_by(control, call(1, "answer"), call(2, "never"), call(3, "unknown"))
        in_progress = list(control._handler_tasks)
        await read_by(control, cancel(2))
        return in_progress, list(control._handler_tasks)

    in_progress, at_the_end = asyncio.run(talk())
    assert in_progress == [uuid.UUID(int=2)]
    assert at_the_end == []
