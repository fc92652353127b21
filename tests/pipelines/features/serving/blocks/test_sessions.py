"""What a server does with messages: sizes are checked before memory is taken, and nobody disturbs anybody else."""

import pytest
import torch
from hostile_messages import honest_start, hostile_sessions
from tiny_models import tiny_dalle, tiny_language_model

from pipelines.core.swarm.streams.quotas import Quota
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.features.serving.blocks.client.distributed_model import local_server
from pipelines.features.serving.blocks.sessions import BlockServer, BlockSession
from pipelines.features.serving.blocks.spans import load_span
from pipelines.features.serving.blocks.weights import find_model

LAYERS = range(1, 5)
MOST = 2**24


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    tiny_dalle(folder)
    return find_model(str(folder))


@pytest.fixture(scope="module")
def span(published):
    return load_span(published, LAYERS)


@pytest.fixture
def server(published):
    return local_server(published, LAYERS, memory=Quota("bytes of caches", per_peer=MOST, in_all=2 * MOST))


def answers_of(session, messages):
    return [session.answer(body, tensors)[1].get("values") for body, tensors in messages]


def test_an_honest_client_is_served_and_its_memory_given_back(server):
    session = BlockSession(server, StreamClient("somebody"))
    answers = answers_of(session, honest_start(server.revision, LAYERS))
    assert [None if answer is None else tuple(answer.shape) for answer in answers] == [
        None, (2, 1, 7, 64), None, (2, 2, 1, 64), (2, 2, 1, 64), (2, 2, 3, 64), (2, 1, 7, 64), (2, 1, 7, 64)
    ]  # fmt: skip
    assert server.memory._taken["somebody"] > 0
    session.close()
    assert server.memory.taken == 0


def test_hundreds_of_hostile_messages_take_no_memory_and_change_no_answer(server):
    honest = BlockSession(server, StreamClient("honest"))
    messages = honest_start(server.revision, LAYERS)
    expected = answers_of(BlockSession(server, StreamClient("first")), messages)
    assert all(one is None or one.isfinite().all() for one in expected)
    answers, refused, done = [], 0, 0
    for number, spoilt in enumerate(hostile_sessions(11, 300, server.revision, LAYERS)):
        if number % 30 == 0 and len(answers) < len(messages):
            answers += answers_of(honest, messages[len(answers) : len(answers) + 1])
        session = BlockSession(server, StreamClient("hostile"))
        try:
            answers_of(session, spoilt)
            done += 1  # some of what is drawn happens to be harmless
        except Refusal as refusal:
            assert refusal.code in ("invalid", "no room", "revision"), refusal
            refused += 1
        assert server.memory._taken["hostile"] <= MOST
        session.close()
        assert server.memory._taken["hostile"] == 0
    assert refused > 240 and refused + done == 300
    assert len(answers) == len(messages)
    for found, wanted in zip(answers, expected, strict=True):
        assert (found is None and wanted is None) or torch.equal(found, wanted)


def test_a_full_cache_refuses_before_it_allocates(server):
    open_message, prefill, *_ = honest_start(server.revision, LAYERS)
    session = BlockSession(server, StreamClient("greedy"))
    answers_of(session, [open_message, prefill])
    before = server.memory.taken
    with pytest.raises(Refusal, match=r"more bytes of caches would be above .* for one peer") as refused:
        session.answer(dict(do="start", num_candidates=1024, window=64), {})
    assert refused.value.code == "no room" and server.memory.taken == before
    session.answer(dict(do="start", num_candidates=2, window=1), {})


@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("num_places", [0, 11])
def test_the_memory_that_is_counted_covers_what_is_held(span, window, num_places):
    opening = dict(do="open", num_prompts=2, num_places=num_places)
    session = span.session(opening, None)
    rows = -(-num_places // 8) * 8
    session.prefill(torch.ones(2, 2, 7 + rows, 64), {})
    held = sum(tensor.numel() * 4 for name in ("text_keys", "text_values", "image_keys", "image_values", "shifted")
               for tensor in getattr(session.prefix, name))  # fmt: skip
    assert held <= session.num_bytes(opening) <= 3 * held
    starting = dict(do="start", num_candidates=3, window=window)
    session.start(starting)
    cache = session.cache
    held += sum(tensor.numel() * 4 for tensor in [*cache.images, *cache.shifted])
    assert held <= session.num_bytes(starting) <= 3 * held


def test_a_step_that_was_not_reached_or_is_behind_is_refused(server):
    messages = honest_start(server.revision, LAYERS)
    session = BlockSession(server, StreamClient("somebody"))
    answers_of(session, messages[:5])
    for place in (0, 3, 63, 64, 2**40):
        places = torch.tensor([[place], [1]])
        with pytest.raises(Refusal, match="Places begin at"):
            session.answer(dict(do="step", steps=1), dict(values=torch.ones(2, 2, 1, 64), places=places))
    answers_of(session, messages[4:5])


def test_what_does_not_come_first_is_told(server):
    messages = honest_start(server.revision, LAYERS)
    for at, words in ((1, "no session, expected an open"), (2, "no session"), (3, "no session")):
        with pytest.raises(Refusal, match=words):
            answers_of(BlockSession(server, StreamClient("somebody")), messages[at : at + 1])
    with pytest.raises(Refusal, match="no batch of candidates yet"):
        answers_of(BlockSession(server, StreamClient("somebody")), [messages[0], messages[3]])
    with pytest.raises(Refusal, match="Not all of the 1 prompts have been read"):
        answers_of(BlockSession(server, StreamClient("somebody")), [messages[0], messages[2]])


def test_another_revision_and_another_span_are_refused_by_name(server):
    body, tensors = honest_start(server.revision, LAYERS)[6]
    with pytest.raises(Refusal, match="This server has revision") as refused:
        BlockSession(server, StreamClient("somebody")).answer({**body, "revision": "f" * 64}, tensors)
    assert refused.value.code == "revision"
    for start, end in ((0, 4), (1, 6), (4, 4)):
        with pytest.raises(Refusal, match=r"(start|end) is \d, expected a whole number from"):
            BlockSession(server, StreamClient("somebody")).answer({**body, "start": start, "end": end}, tensors)


def test_damaged_weights_are_told_and_not_sent(published):
    server = local_server(published, LAYERS)
    with torch.no_grad():
        server.span.stack.layers[2].attention.norm.weight[0] = torch.nan
    with pytest.raises(Refusal, match="not finite: its weights are damaged"):
        answers_of(BlockSession(server, StreamClient("somebody")), honest_start(server.revision, LAYERS)[6:7])


def test_weights_of_eight_bits_compute_almost_the_same_and_no_gradients(published):
    exact = local_server(published, LAYERS)
    server = BlockServer(
        span=load_span(published, LAYERS, weights="int8"), revision=exact.revision, memory=exact.memory
    )
    messages = honest_start(server.revision, LAYERS)
    found, expected = (answers_of(BlockSession(one, StreamClient("somebody")), messages[:6]) for one in (server, exact))
    for one, other in zip(found, expected, strict=True):
        assert (one is None and other is None) or (one - other).norm() < 0.05 * other.norm()
    with pytest.raises(Refusal, match="weights have 8 bits, with which it computes no gradients"):
        answers_of(BlockSession(server, StreamClient("somebody")), messages[7:])


def test_language_sessions_check_order_length_and_rows(tmp_path):
    tiny_language_model(tmp_path, "gpt2")
    server = local_server(find_model(str(tmp_path)), range(0, 2))
    where = dict(start=0, end=2, revision=server.revision, codec="float32")
    session = BlockSession(server, StreamClient("somebody"))
    session.answer(dict(do="open", num_samples=2, length=5, **where), {})

    def step(places, **more):
        body = dict(do="step", steps=len(places))
        tensors = dict(values=torch.ones(1, 2, len(places), 32), places=torch.tensor([places, places]))
        return session.answer(body, tensors | more)

    step([0, 1, 2])
    for message, words in (
        (lambda: step([4]), "Places begin at 4, expected 3"),
        (lambda: step([3, 4, 5]), "steps is 3, expected a whole number from 1 to 2"),
        (lambda: step([3], mask=torch.ones(2, 3, dtype=torch.uint8)), "The mask is"),
        (lambda: step([3], positions=torch.full((1, 1), 2**30)), "positions are up to"),
        (lambda: session.answer(dict(do="reorder"), dict(rows=torch.tensor([0, 2]))), "Rows are out of range"),
        (lambda: session.answer(dict(do="start", num_candidates=1), {}), "no candidates to start"),
        (lambda: session.answer(dict(do="prefill", prompts=1), {}), "no prompts to share"),
    ):
        with pytest.raises(Refusal, match=words):
            message()
    step([3, 4])
    session.close()
    assert server.memory.taken == 0


def test_a_step_of_many_places_is_refused_where_its_mask_would_not_fit(tmp_path):
    """Seen before: caches were counted, and what a long step takes beside them was not."""
    tiny_language_model(tmp_path, "gpt2")
    memory = Quota("bytes of caches", per_peer=2**16, in_all=2**17)
    server = local_server(find_model(str(tmp_path)), range(0, 1), memory=memory)
    length = min(server.span.most_places(), 64)
    where = dict(start=0, end=1, revision=server.revision, codec="float32")
    session = BlockSession(server, StreamClient("somebody"))
    session.answer(dict(do="open", num_samples=1, length=length, **where), {})
    held = memory.taken

    def read(first, number):
        places = torch.arange(first, first + number)[None]
        tensors = dict(values=torch.ones(1, 1, number, 32), places=places)
        session.answer(dict(do="step", steps=number), tensors)

    with pytest.raises(Refusal, match="more bytes of caches would be above"):
        read(0, length)
    read(0, 4)
    read(4, 1)
    assert memory.taken == held
