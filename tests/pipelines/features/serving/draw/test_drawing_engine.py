"""One engine draws for many: each gets its own codes, equal jobs share a batch, nobody waits for a large client."""

import gc
import queue
import threading
import weakref

import pytest
import torch
from tiny_run_parts import TEXT_LENGTH, tiny_model

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.core.swarm.streams.stream_clients import StreamClient
from pipelines.features.serving.draw.drawing_offer import drawing_room
from pipelines.features.serving.draw.engine import MOST_JOBS_AT_ONCE, DrawEngine, Job
from pipelines.features.serving.draw.modalities.choice import modality_of
from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest

SECONDS = 60


@pytest.fixture(scope="module")
def model():
    return tiny_model(32)


class Asked:
    """A job and what is told of it."""

    def __init__(self, model, client, candidates, *, words=1, **values):
        text = torch.full((1, TEXT_LENGTH), words)
        self.sampling = SamplingRequest(
            revision="", precision="", tokenizer="", input_ids=text, **dict(dict(every=4), **values)
        )
        self.news, self.begun = queue.Queue(), threading.Event()
        request = DrawRequest(sampling=self.sampling, candidates=candidates)
        self.job = Job(client=client, model=model, request=request, tell=self.tell)
        self.candidates, self.model, self.is_done, self.on_news = candidates, model, False, None

    def tell(self, what):
        self.begun.set()
        self.is_done |= what is None
        if self.on_news is not None:
            on_news, self.on_news = self.on_news, None
            on_news()
        self.news.put(what)

    def codes(self):
        parts = []
        while (what := self.news.get(timeout=SECONDS)) is not None:
            if isinstance(what, Exception):
                raise what
            parts.append(what)
        return torch.cat(parts, dim=1).long()

    def expected(self):
        number = self.candidates.stop
        codes = self.model.generate_image_codes(
            self.sampling.input_ids,
            num_candidates=number,
            seed=self.sampling.seed,
            image_prompt=self.sampling.image_prompt,
            **vars(self.sampling.options),
        )
        return codes[0, self.candidates.start :, self.sampling.num_given :]


def test_everybody_gets_the_codes_of_one_machine(model):
    """Equal jobs of several clients, with other prompts and seeds, share batches; others go on beside them."""
    given = torch.tensor([[1, 2, 3]])
    asked = [
        *(Asked(model, f"asker {n}", range(n, n + 3), words=n, seed=n) for n in range(5)),
        Asked(model, "asker 1", range(2), seed=9, options=SamplingOptions(temperature=0.5)),
        Asked(model, "asker 7", range(3), image_prompt=given),
        Asked(model, "asker 8", range(3), image_prompt=given, options=SamplingOptions(guidance_scale=3.0)),
    ]
    engine = DrawEngine()
    for one in asked:
        engine.submit(one.job)  # before it runs, so that batches are as large as they can be
    with engine:
        for one in asked:
            assert torch.equal(one.codes(), one.expected())
        assert engine.num_drawn == sum(len(one.candidates) for one in asked)


def test_a_small_client_does_not_wait_for_a_large_one(model):
    large = [Asked(model, "large", range(64 * n, 64 * (n + 1)), seed=n, every=1) for n in range(8)]
    small = Asked(model, "small", range(1))
    with DrawEngine(most_codes_per_second=5000) as engine:
        for one in large:
            engine.submit(one.job)
        assert large[0].begun.wait(SECONDS)
        engine.submit(small.job)
        small.codes()
        assert not large[-1].begun.is_set()
        for one in large:
            engine.cancel(one.job)


def test_several_large_jobs_of_one_client_leave_half_of_the_machine_to_another(model):
    """Seen before: another client's drawing began when one of four large ones, which had all places, was done."""
    large = [Asked(model, "large", range(8 * (n + 1)), seed=n, every=1) for n in range(2 * MOST_JOBS_AT_ONCE)]
    small = Asked(model, "small", range(1), every=1)
    with DrawEngine() as engine:
        large[MOST_JOBS_AT_ONCE - 1].on_news = lambda: engine.submit(small.job)  # as soon as all places are taken
        for one in large:
            engine.submit(one.job)
        codes = small.codes()
        assert not any(one.is_done for one in large)
        assert torch.equal(codes, small.expected())
        for one in large:
            engine.cancel(one.job)


def test_what_was_cancelled_while_it_waited_is_forgotten(model):
    engine = DrawEngine()  # it does not run: everything waits
    asked = [Asked(model, "gone", range(1)) for _ in range(3)]
    for one in asked:
        engine.submit(one.job)
        engine.cancel(one.job)
    kept = weakref.ref(asked[0].job)
    asked.clear()
    del one
    gc.collect()
    assert kept() is None


def test_one_peer_takes_half_of_the_memory_or_what_one_drawing_needs(model):
    least = modality_of(model.config).most_bytes_of_one(model.config)
    room = drawing_room(model, 8 * least)
    room.take(StreamClient("large", "203.0.113.7"), 4 * least)
    for other in (StreamClient("large"), StreamClient("its other name", "203.0.113.7")):
        with pytest.raises(Refusal, match="more bytes for drawings would be above"):
            room.take(other, 1)
    room.take(StreamClient("small", "198.51.100.1"), least)
    drawing_room(model, least).take(StreamClient("alone"), least)
    with pytest.raises(ValueError, match="Give more: --memory"):
        drawing_room(model, least - 1)


def test_a_damaged_model_fails_its_own_jobs_alone(model):
    damaged = tiny_model(32)
    with torch.no_grad():
        damaged.output_bias.fill_(float("nan"))
    good, bad = Asked(model, "good", range(2)), Asked(damaged, "bad", range(2))
    with DrawEngine() as engine:
        engine.submit(bad.job)
        with pytest.raises(ValueError, match="logits are not finite"):
            bad.codes()
        engine.submit(good.job)
        assert torch.equal(good.codes(), good.expected())


class Gone(Asked):
    """Somebody whom nothing can be told any more."""

    def tell(self, what):
        self.begun.set()
        raise RuntimeError("Event loop is closed")


def test_who_is_gone_stops_nobody_elses_drawing(model):
    gone, good = Gone(model, "gone", range(2)), Asked(model, "good", range(2))
    with DrawEngine() as engine:
        engine.submit(gone.job)
        assert gone.begun.wait(SECONDS)
        engine.submit(good.job)
        assert torch.equal(good.codes(), good.expected())


def test_what_is_paused_goes_on_where_it_was(model):
    one = Asked(model, "a", range(4))
    with DrawEngine() as engine:
        engine.pause(True)
        engine.submit(one.job)
        assert not one.begun.wait(0.2)
        engine.pause(False)
        assert torch.equal(one.codes(), one.expected())
