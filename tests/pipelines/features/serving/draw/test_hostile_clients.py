"""Hundreds of hostile messages: the server serves on, takes no more memory than it gives, and nobody's codes change."""

import asyncio
import contextlib
import json
import random

import pytest
import torch
from admission_material import running_service
from drawn_runs import LOOPBACK, drawn_run
from hivemind.p2p import P2P, PeerID
from published_runs import family_of, the_line
from stream_peer import HOST
from tiny_run_parts import GRID, NUM_CODES, TEXT_LENGTH

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.core.swarm.streams.asking import open_conversation
from pipelines.core.swarm.streams.frames import HEADER, Frame, Kind, buffers_of
from pipelines.core.swarm.streams.introductions import PROTOCOL_VERSION, Introductions
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.server import handler_name
from pipelines.features.publishing.repository.manifest import digest_file
from pipelines.features.serving.draw.ranking.requests import SERVICE as RANK_SERVICE
from pipelines.features.serving.draw.ranking.requests import RankRequest
from pipelines.features.serving.draw.requests import SERVICE, DrawRequest, SamplingRequest, tokenizer_name

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(600)]

RUN = ("attacked-run",)
AT_ONCE, PATIENCE = 6, 60.0
MOST_GROWTH = 150e6
"""Bytes: what one drawing takes here is a few MB; a message that was believed could announce terabytes."""

NAMESPACE = "drawn"
NONSENSE = (None, True, -1, 0, 2**31, 2**63 - 1, 1e308, float("nan"), "", "x" * 5000, b"\x00", [], [1], {}, {"a": 1})


def a_sampling(run, words=1, **values):
    processor = DalleCollabProcessor.from_pretrained(run.folder / "run")
    return SamplingRequest(
        revision=digest_file(run.folder / "run" / "model.safetensors").sha256,
        precision="float32",
        tokenizer=tokenizer_name(processor, DalleCollabConfig.from_pretrained(run.folder / "run")),
        input_ids=torch.full((1, TEXT_LENGTH), words),
        **values,
    )


def written(kind, body, tensors=()):
    return b"".join(bytes(part) for part in buffers_of(Frame(kind=kind, body=body, tensors=dict(tensors))))


def hostile_bytes(draw, honest_body, honest_tensors):
    """Return what one hostile stream sends; the kinds are drawn by a seeded generator."""
    hello = written(Kind.HELLO, dict(version=PROTOCOL_VERSION, token="", about={}))
    body, tensors = dict(honest_body), dict(honest_tensors)
    kind = draw.randrange(9)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:  # sizes that nobody has
        return (
            hello + HEADER.pack(draw.randrange(256), draw.randrange(2**32), draw.randrange(2**64)) + draw.randbytes(50)
        )
    if kind == 2:  # ends in the middle
        whole = hello + written(Kind.MESSAGE, body, tensors)
        return whole[: draw.randrange(len(whole))]
    if kind == 3:  # a bit is flipped
        whole = bytearray(hello + written(Kind.MESSAGE, body, tensors))
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        return bytes(whole)
    if kind == 4:
        body[draw.choice(sorted(body))] = draw.choice(NONSENSE)
    elif kind == 5:
        sampling = body.get("sampling", {})
        body["sampling"] = sampling | {draw.choice(sorted({*sampling, "top_k"})): draw.choice(NONSENSE)}
    elif kind == 6:
        shape = [draw.choice((0, 1, 2, TEXT_LENGTH, 1000)) for _ in range(draw.randrange(5))]
        dtype = draw.choice((torch.int8, torch.int32, torch.int64, torch.float32, torch.bfloat16))
        tensors[draw.choice((*honest_tensors, "image_prompt", "x"))] = torch.zeros(shape, dtype=dtype)
    elif kind == 7:
        highest = draw.choice((NUM_CODES, 2**31 - 1))
        name = draw.choice((*honest_tensors, "image_prompt"))
        tensors[name] = torch.full((1, draw.randrange(1, 2 * GRID**2)), highest, dtype=torch.int32)
    else:  # honest, and gone before the answer, or much of it at once
        return hello + draw.randrange(1, 6) * written(Kind.MESSAGE, body, tensors)
    return hello + written(Kind.MESSAGE, body, tensors)


async def scored(p2p, server, asked):
    """Return the scores of candidates, as an honest client gets them who comes back when there is no room."""
    while True:
        with contextlib.suppress(Refusal):
            conversation, _ = await open_conversation(p2p, server, NAMESPACE, RANK_SERVICE, Introductions(None))
            async with conversation:
                await conversation.send(*asked.message())
                scores = torch.empty(0)
                while len(scores) < len(asked.codes):
                    scores = torch.cat([scores, (await conversation.receive(PATIENCE)).tensors["scores"]])
                return scores
        await asyncio.sleep(0.2)


async def drawn(p2p, server, sampling):
    """Return the codes of two candidates, as an honest client gets them who comes back when there is no room."""
    while True:
        with contextlib.suppress(Refusal):
            conversation, _ = await open_conversation(p2p, server, NAMESPACE, SERVICE, Introductions(None))
            async with conversation:
                await conversation.send(*DrawRequest(sampling=sampling, candidates=range(2)).message())
                parts = []
                while not (frame := await conversation.receive(PATIENCE)).body.get("done"):
                    parts.append(frame.tensors["codes"])
                return torch.cat(parts, dim=1).long()
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("number", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_hostile_messages_change_nobodys_codes(run, number):
    server = run.serve("--memory", 0.05, "--ranking")
    ready = server.wait_for("serving")
    sampling = a_sampling(run)
    model = DalleCollabForConditionalGeneration.from_pretrained(run.folder / "run").eval()
    expected = model.generate_image_codes(sampling.input_ids, num_candidates=2)[0]
    body, tensors = DrawRequest(sampling=sampling, candidates=range(8)).message()
    draw = random.Random(0)
    asked = RankRequest(caption="a small red star", codes=expected)
    messages = [(SERVICE, hostile_bytes(draw, body, tensors)) for _ in range(number)]
    messages += [(RANK_SERVICE, hostile_bytes(draw, *asked.message())) for _ in range(number // 4)]
    draw.shuffle(messages)

    async def attack(p2p):
        while messages:
            service, data = messages.pop()
            with contextlib.suppress(Exception):  # streams are refused, which is what they deserve
                async with asyncio.timeout(PATIENCE):
                    name = handler_name(NAMESPACE, service)
                    _, reader, writer = await p2p.call_binary_stream_handler(PeerID.from_base58(ready["peer"]), name)
                    try:
                        writer.write(data)
                        await writer.drain()
                        if len(messages) % 3:  # the others are gone at once
                            await reader.read(2**16)
                    finally:
                        writer.close()

    async def everybody():
        hostile, honest = [
            await P2P.create(initial_peers=ready["addresses"], host_maddrs=[HOST], startup_timeout=120)
            for _ in range(2)
        ]
        try:
            first = await drawn(honest, ready["peer"], sampling)
            scores = [await scored(honest, ready["peer"], asked)]
            before = memory()
            attacks = [asyncio.create_task(attack(hostile)) for _ in range(AT_ONCE)]
            answers, highest = [], before
            while not all(task.done() for task in attacks):
                answers.append(await drawn(honest, ready["peer"], sampling))
                scores.append(await scored(honest, ready["peer"], asked))
                highest = max(highest, memory())
            await asyncio.gather(*attacks)
            return [first, *answers, await drawn(honest, ready["peer"], sampling)], scores, highest - before
        finally:
            await hostile.shutdown()
            await honest.shutdown()

    def memory():
        return sum(process.memory_info().rss for process in family_of(server.process.pid))

    answers, scores, growth = asyncio.run(everybody())
    assert len(answers) > 2 and all(torch.equal(codes, expected) for codes in answers)
    assert len(scores) > 1 and all(torch.equal(one, scores[0]) for one in scores)
    assert growth < MOST_GROWTH, f"the server's memory grew by {growth / 1e6:.0f} MB"
    assert server.process.poll() is None and "Traceback" not in server.log.read_text(), server.log.read_text()[-3000:]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (dict(revision="0" * 64), "revision", "This server has epoch 3"),
        (dict(precision="int8"), "revision", "computes in float32, not in int8"),
        (dict(tokenizer="0" * 64), "invalid", "Take the processor from the run's repository"),
    ],
)
def test_a_request_for_something_else_reads_what_there_is(run, changes, code, said):
    ready = (run.servers[0] if run.servers and run.servers[0].process.poll() is None else run.serve()).wait_for(
        "serving"
    )

    async def refused():
        p2p = await P2P.create(initial_peers=ready["addresses"], host_maddrs=[HOST], startup_timeout=120)
        try:
            conversation, about = await open_conversation(p2p, ready["peer"], NAMESPACE, SERVICE, Introductions(None))
            async with conversation:
                sampling = a_sampling(run)
                assert about == dict(revision=sampling.revision, precision="float32")
                body, tensors = DrawRequest(sampling=sampling, candidates=range(1)).message()
                await conversation.send(body | changes, tensors)
                await conversation.receive(PATIENCE)
        finally:
            await p2p.shutdown()

    with pytest.raises(Refusal, match=said) as refusal:
        asyncio.run(refused())
    assert refusal.value.code == code


@pytest.mark.long
def test_where_an_authority_admits_nobody_else_is_answered(hub, commands, tmp_path):
    with drawn_run(hub, tmp_path, "closed-run") as run, running_service(hub, run.name, tmp_path) as service:
        address, key = service.address, service.key.public
        run.change(authorization_service=address, authorization_key=key, entry_addresses=())
        run.assist()
        ready = run.serve("--name", "whoever").wait_for("serving")
        words = ("generate", run.name, "a small red star", "--candidates", 2, "--keep", 2, "--device", "cpu", "--swarm")
        drawn = commands.run(*words, folder=tmp_path, is_worker=True)
        assert drawn.returncode == 0, drawn.stderr
        assert "2 candidates drawn by alice 2 " in drawn.stderr  # the name is the authority's word
        stranger = commands.run(*words, folder=tmp_path, is_worker=True, token="")
        assert "joining needs a Hub token" in the_line(stranger)

        async def refused():
            p2p = await P2P.create(initial_peers=ready["addresses"], host_maddrs=[HOST], startup_timeout=120)
            try:
                await open_conversation(p2p, ready["peer"], NAMESPACE, SERVICE, Introductions(None))
            finally:
                await p2p.shutdown()

        with pytest.raises(Refusal) as refusal:
            asyncio.run(refused())
        assert refusal.value.code == "not admitted"


@pytest.mark.long
def test_many_peers_at_one_address_have_no_more_room_than_an_address_may_have(hub, tmp_path):
    """Peer ids cost nothing: what the organiser grants an address is all that they get, and they are refused typed."""
    with drawn_run(hub, tmp_path, "crowded-run") as run:
        run.change(candidates_per_peer=4, candidates_per_address=6, streams_per_peer=2, streams_per_address=3)
        ready = run.serve("--max-codes-per-second", 1).wait_for("serving")
        sampling = a_sampling(run, every=1)

        async def asked(stack, p2p, number=0):
            """Open a conversation, and ask for so many candidates in it."""
            conversation, _ = await open_conversation(p2p, ready["peer"], NAMESPACE, SERVICE, Introductions(None))
            await stack.enter_async_context(conversation)
            if number:
                await conversation.send(*DrawRequest(sampling=sampling, candidates=range(number)).message())
            return conversation

        async def crowd():
            async with contextlib.AsyncExitStack() as stack:
                one, another = [
                    await P2P.create(initial_peers=ready["addresses"], host_maddrs=[HOST], startup_timeout=120)
                    for _ in range(2)
                ]
                stack.push_async_callback(one.shutdown)
                stack.push_async_callback(another.shutdown)
                assert "codes" in (await (await asked(stack, one, 4)).receive(PATIENCE)).tensors
                with pytest.raises(Refusal, match="1 more candidates would be above 4 for one peer"):
                    await (await asked(stack, one, 1)).receive(PATIENCE)
                with pytest.raises(Refusal, match="4 more candidates would be above 6 for one address") as refused:
                    await (await asked(stack, another, 4)).receive(PATIENCE)
                assert refused.value.code == "busy"
                assert "codes" in (await (await asked(stack, another, 2)).receive(PATIENCE)).tensors
                await asked(stack, another)
                with pytest.raises(Refusal, match="above 3 for one address"):
                    await asked(stack, one)

        asyncio.run(crowd())


@pytest.mark.long
def test_where_everybody_may_draw_strangers_do_and_members_alone_serve(hub, commands, tmp_path):
    with drawn_run(hub, tmp_path, "generous-run") as run, running_service(hub, run.name, tmp_path) as service:
        address, key = service.address, service.key.public
        run.change(authorization_service=address, authorization_key=key, entry_addresses=(), who_may_draw="everybody")
        run.assist()
        run.serve()
        words = ("generate", run.name, "a small red star", "--candidates", 2, "--keep", 2, "--device", "cpu", "--json")
        here = commands.run(*words, folder=tmp_path)
        theirs = commands.run(*words, "--swarm", folder=tmp_path, is_worker=True, token="")
        assert theirs.returncode == 0, theirs.stderr
        assert codes_of(theirs) == codes_of(here)
        assert "2 candidates drawn by alice 2 " in theirs.stderr
        refused = commands.run("serve", run.name, "--host", LOOPBACK, is_worker=True, token="")
        assert "joining needs a Hub token" in the_line(refused)


def codes_of(done):
    return [one["image_codes"] for one in json.loads(done.stdout.splitlines()[0])["pictures"]]
