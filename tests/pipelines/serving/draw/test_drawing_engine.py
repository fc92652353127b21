"""One engine draws for many: each gets its own codes, equal jobs share a batch, nobody waits for a large asker."""

import queue
import threading

import pytest
import torch
from drawn_runs import TEXT_LENGTH, tiny_model

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.serving.draw.engine import DrawEngine, Job
from pipelines.serving.draw.requests import DrawRequest, Wish

SECONDS = 60


@pytest.fixture(scope="module")
def model():
    return tiny_model(32)


class Asked:
    """A job and what is told of it."""

    def __init__(self, model, asker, candidates, *, words=1, **values):
        text = torch.full((1, TEXT_LENGTH), words)
        self.wish = Wish(revision="", precision="", tokenizer="", input_ids=text, **dict(dict(every=4), **values))
        self.news, self.begun = queue.Queue(), threading.Event()
        request = DrawRequest(wish=self.wish, candidates=candidates)
        self.job = Job(asker=asker, model=model, request=request, tell=self.tell)
        self.candidates, self.model = candidates, model

    def tell(self, what):
        self.begun.set()
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
            self.wish.input_ids,
            num_candidates=number,
            seed=self.wish.seed,
            image_prompt=self.wish.image_prompt,
            **vars(self.wish.options),
        )
        return codes[0, self.candidates.start :, self.wish.num_given :]


def test_everybody_gets_the_codes_of_one_machine(model):
    """Equal jobs of several askers, with other prompts and seeds, share batches; others go on beside them."""
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


def test_a_small_asker_does_not_wait_for_a_large_one(model):
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
