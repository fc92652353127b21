"""Two real peers talk: what one sends the other gets, who has gone is noticed, and no stranger's bytes do harm."""

import asyncio
import contextlib
import json
import os
import signal

import msgpack
import pytest
import torch
from forked_processes import ForkedProcess, fork_server
from hivemind.p2p import P2P, PeerID
from running_programs import wait_for
from stream_peer import HOST, NAMESPACE, SERVICE
from support_files import SUPPORT

from hub_tools.processes.event_files import read_events
from pipelines.core.swarm.streams import introductions as introduction_module
from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.conversation import silence_seconds
from pipelines.core.swarm.streams.frames import HEADER, Frame, Kind, buffers_of
from pipelines.core.swarm.streams.introductions import Introductions
from pipelines.core.swarm.streams.refusals import PeerGoneError, PeerSilentError, Refusal
from pipelines.core.swarm.streams.server import handler_name

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(300)]

PATIENCE = 60.0
"""Longest silence, where a test is about something else: the machine may be busy."""


class AnsweringPeer:
    """A peer that answers, in a process of its own."""

    def __init__(self, folder, **limits):
        log, settings, self.output = folder / "ready.json", folder / "settings.json", folder / "peer.log"
        settings.write_text(json.dumps(dict(log=str(log), limits=limits)), encoding="utf-8")
        self.process = ForkedProcess(fork_server(), str(SUPPORT / "stream_peer.py"), [str(settings)], self.output)
        (ready,) = wait_for(lambda: read_events(log), "ready", 120, process=self.process, log=self.output)
        self.addresses, self.peer = ready["addresses"], ready["peer"]

    def open(self, p2p, service=SERVICE):
        return open_conversation(p2p, self.peer, NAMESPACE, service, Introductions(None))


@pytest.fixture
def answering(tmp_path):
    """Yield a peer that answers at most three streams of one peer, and little memory's worth of messages."""
    peer = AnsweringPeer(tmp_path, streams_per_peer=3, message_bytes_per_peer=2**21)
    yield peer
    for number in (signal.SIGCONT, signal.SIGKILL):
        peer.process.signal_group(number)


def run_with(answering, work):
    """Run a coroutine that gets this process's own libp2p daemon."""

    async def with_daemon():
        p2p = await P2P.create(initial_peers=answering.addresses, host_maddrs=[HOST], startup_timeout=120)
        try:
            return await work(p2p)
        finally:
            await p2p.shutdown()

    return asyncio.run(with_daemon())


async def raw_stream(p2p, answering):
    """Return reader and writer of a stream on which nothing has been said."""
    name = handler_name(NAMESPACE, SERVICE)
    return (await p2p.call_binary_stream_handler(PeerID.from_base58(answering.peer), name))[1:]


def written(kind, body):
    return b"".join(buffers_of(Frame(kind=kind, body=body)))


HELLO = written(Kind.HELLO, dict(version=introduction_module.PROTOCOL_VERSION, token="", about={}))


def test_messages_go_both_ways_and_many_come_for_one(answering):
    async def work(p2p):
        conversation, about = await answering.open(p2p)
        async with conversation:
            assert about == dict(num_open=0)
            values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
            await conversation.send(dict(do="echo", text="x"), dict(values=values))
            answer = await conversation.receive(PATIENCE)
            assert (answer.body["text"], torch.equal(answer.tensors["values"], values)) == ("x", True)
            await conversation.send(dict(do="count", times=100))
            numbers = [(await conversation.receive(PATIENCE)).body["number"] for _ in range(100)]
            assert numbers == list(range(100))
            await conversation.send(dict(do="be busy", seconds=4.0))  # heartbeats: longer than the silence allowed
            assert (await conversation.receive(3.0)).body == {}
            await conversation.send(dict(do="leave"))
            with pytest.raises(PeerGoneError, match="ended the conversation"):
                await conversation.receive(PATIENCE)

    run_with(answering, work)


def test_what_is_refused_comes_with_its_code_and_other_conversations_go_on(answering):
    async def work(p2p):
        bystander, _ = await answering.open(p2p)
        async with bystander:
            for wanted, code in (("refuse", "invalid"), ("fail", "failed")):
                conversation, _ = await answering.open(p2p)
                async with conversation:
                    await conversation.send(dict(do=wanted))
                    with pytest.raises(Refusal) as refused:
                        await conversation.receive(PATIENCE)
                    assert refused.value.code == code
            with pytest.raises(PeerGoneError, match="does not offer"):
                await answering.open(p2p, "another service")
            others = [(await answering.open(p2p))[0] for _ in range(2)]
            with pytest.raises(Refusal, match="above 3 for one peer") as refused:
                await answering.open(p2p)
            assert refused.value.code == "busy"
            for other in others:
                await other.close()
            await bystander.send(dict(do="echo"))
            assert (await bystander.receive(PATIENCE)).body == dict(do="echo")

    run_with(answering, work)


def test_bytes_that_are_no_conversation_end_it_alone(answering):
    packed = msgpack.packb({"body": {}, "tensors": [["a", "float32", [2]]]})
    attempts = [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "malformed"),
        (written(Kind.MESSAGE, dict(do="echo")), "malformed"),
        (written(Kind.HELLO, dict(version=99)), "version"),
        (written(Kind.HELLO, {}), "version"),
        (HELLO + HEADER.pack(Kind.MESSAGE, 2**20, 0), "too large"),
        (HELLO + HEADER.pack(Kind.MESSAGE, 10, 2**40), "too large"),
        (HELLO + HEADER.pack(Kind.MESSAGE, 2, 0) + b"\xc1\xc1", "malformed"),
        (HELLO + HEADER.pack(Kind.MESSAGE, len(packed), 4) + packed + bytes(4), "malformed"),
        (HELLO + written(Kind.HEARTBEAT, {}), "malformed"),
        (HELLO + written(Kind.MESSAGE, dict(do=[1, {}])), "failed"),
    ]

    async def refusal_of(p2p, data):
        reader, writer = await raw_stream(p2p, answering)
        writer.write(data)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    kind, length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
                    content = msgpack.unpackb(await reader.readexactly(length))
                    if kind == Kind.REFUSAL:
                        return content["body"]["code"]
        finally:
            writer.close()

    async def work(p2p):
        bystander, _ = await answering.open(p2p)
        async with bystander:
            codes = [await refusal_of(p2p, data) for data, _ in attempts]
            assert codes == [code for _, code in attempts]
            for _ in range(3):  # half a message, and none at all
                _, writer = await raw_stream(p2p, answering)
                writer.write(HELLO + HEADER.pack(Kind.MESSAGE, 100, 2**20) + b"abc")
                writer.close()
            await bystander.send(dict(do="echo"), dict(a=torch.ones(2**17)))
            assert torch.equal((await bystander.receive(PATIENCE)).tensors["a"], torch.ones(2**17))

    run_with(answering, work)


def test_a_peer_that_is_killed_is_noticed_at_once_and_one_that_is_stopped_by_its_silence(answering):
    async def work(p2p):
        conversation, _ = await answering.open(p2p)
        async with conversation:
            await conversation.send(dict(do="be busy", seconds=600.0))
            answering.process.signal_group(signal.SIGSTOP)
            with pytest.raises(PeerSilentError, match=r"has been silent for 2\.\d s"):
                await conversation.receive(silence_seconds(0.01, conversation.round_trip_seconds))
            answering.process.signal_group(signal.SIGCONT)
            heard = conversation.last_heard
            with pytest.raises(PeerSilentError):
                await conversation.receive(0.001)  # the conversation is still there
            os.kill(answering.process.pid, signal.SIGKILL)  # the peer's main process; its guard kills the rest
            with pytest.raises(PeerGoneError) as gone:
                await conversation.receive(600.0)  # without heartbeats to miss, only the end of the stream can end this
            assert not isinstance(gone.value, PeerSilentError)
            assert conversation.last_heard >= heard

    run_with(answering, work)


def test_a_peer_that_goes_away_frees_its_place(answering):
    async def work(p2p):
        for _ in range(9):  # three times as many as have room
            conversation, _ = await answering.open(p2p)
            await conversation.send(dict(do="be busy", seconds=600.0))
            await conversation.close()
            await until_nobody_is_served(p2p)

    async def until_nobody_is_served(p2p):
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(Refusal):
                    conversation, about = await answering.open(p2p)
                    await conversation.close()
                    if about == dict(num_open=0):
                        return

    run_with(answering, work)


def test_a_server_that_leaves_refuses_newcomers_and_ends(answering):
    async def work(p2p):
        conversation, _ = await answering.open(p2p)
        async with conversation:
            await conversation.send(dict(do="be busy", seconds=600.0))
            answering.process.send_signal(signal.SIGTERM)
            with pytest.raises((PeerGoneError, Refusal)):
                while True:
                    await conversation.receive(PATIENCE)

    run_with(answering, work)
    assert answering.process.wait(60) == 0
