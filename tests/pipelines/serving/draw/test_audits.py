"""Liars are named from a few audited candidates, honest servers never: pure decisions, on a model that has learned."""

import random

import pytest
import torch
from false_drawings import drawings_of_liars, honest, in_bfloat16, in_int8
from learned_model import captions_and_codes, learned_model

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.serving.avoided import AvoidedServers
from pipelines.serving.draw.audits import (
    EXACT,
    LEAST_AUDITED,
    POOL,
    SHARE_AUDITED,
    AuditBook,
    Honesty,
    to_audit,
)
from pipelines.serving.draw.evidence import distances_from, excesses, honest_excesses
from pipelines.serving.draw.requests import Wish

NUM_AUDITED = 16


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return learned_model()


def a_wish(seed, **options):
    text, _ = captions_and_codes(1, torch.Generator().manual_seed(100 + seed))
    return Wish(revision="", precision="", tokenizer="", input_ids=text, seed=seed, options=SamplingOptions(**options))


def test_a_distance_is_that_from_the_codes_interval_of_probability():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().repeat(4, 1)
    numbers = torch.tensor([0.4, 0.6, 0.8, 0.2], dtype=torch.float64)
    codes = torch.tensor([0, 0, 1, 2])
    found = distances_from(logits, numbers, codes, SamplingOptions())
    assert torch.allclose(found, torch.tensor([0.0, 0.1, 0.05, 0.55], dtype=torch.float64), atol=1e-7)
    greedy = distances_from(logits, numbers, codes, SamplingOptions(temperature=0))
    assert torch.allclose(greedy, torch.tensor([0.0, 0.0, 0.25, 0.25], dtype=torch.float64), atol=1e-7)


@pytest.mark.parametrize("options", [{}, dict(temperature=0), dict(top_p=0.8, guidance_scale=2.0), dict(top_k=3)])
def test_an_exact_server_is_off_by_rounding_alone(model, options):
    wish = a_wish(0, **options)
    numbers = wish.numbers(range(NUM_AUDITED), model.config)
    measured = excesses(model, wish, numbers, honest(model, wish, NUM_AUDITED), batch_size=5)
    assert measured.shape == (NUM_AUDITED,) and float(measured.max()) < 1e-6


def test_an_image_prompt_is_nobodys_fault(model):
    given = torch.arange(12)[None]
    wish = Wish(revision="", precision="", tokenizer="", input_ids=a_wish(0).input_ids, image_prompt=given)
    codes = honest(model, wish, 4, image_prompt=given)
    assert float(excesses(model, wish, wish.numbers(range(4), model.config), codes).max()) < 1e-6


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_liar_is_named_and_no_honest_server(model, precision):
    """A short form of tests/benchmarks/audits.py, which has 20 seeds of liars and 200 honest servers."""
    rounded = dict(bfloat16=in_bfloat16, int8=in_int8).get(precision, lambda exact: exact)(model)
    learned = a_wish(50)
    numbers = learned.numbers(range(32), model.config)
    codes = honest(model, learned, 32)
    measured = honest_excesses(model, rounded, learned, numbers, codes).tolist()
    book = AuditBook({precision: Honesty.of(measured)})
    for seed in range(2):
        wish = a_wish(seed)
        numbers = wish.numbers(range(NUM_AUDITED), model.config)
        drawings = dict(drawings_of_liars(model, wish, NUM_AUDITED, seed), honest=honest(rounded, wish, NUM_AUDITED))
        for name, drawn in drawings.items():
            server = f"{name} {seed}"
            for excess in excesses(model, wish, numbers, drawn).tolist():
                if book.note(server, precision, [excess]):
                    break
            assert book.avoided.avoids(server) == (name != "honest"), server


def test_a_liar_is_avoided_and_it_is_said_until_when_and_who_else():
    book = AuditBook({}, AvoidedServers(clock=lambda: 0.0))
    complaint = book.note("liar", "float32", [0.1], "alice")
    assert (complaint.server, complaint.user, complaint.until, complaint.num_audited) == ("liar", "alice", 600.0, 1)
    assert str(complaint).endswith(
        "Its candidates are drawn again elsewhere, and it and the other servers of alice are avoided until 1970-01-01 "
        "00:10:00 UTC."
    )
    assert book.avoided.avoids("liar") and book.avoided.avoids("another", "alice")
    assert book.note("honest", "float32", [0.0] * 100) is None and not book.avoided.avoids("honest")
    assert book.num_audited("honest") == 100 and book.num_audited("nobody") == 0
    assert book.knows("float32") and not book.knows("int8")


def test_a_damaged_model_of_the_auditor_accuses_nobody():
    book = AuditBook({})
    assert book.note("honest", "float32", [float("nan")]) is None and not book.avoided.avoids("honest")


def test_only_the_last_candidates_of_a_server_count_and_one_flip_in_rounding_is_no_lie():
    book = AuditBook({})
    assert book.note("server", "float32", [EXACT.largest]) is None
    assert book.note("server", "float32", [0.0] * POOL + [2 * EXACT.mean]) is None
    assert Honesty.of([1e-4, 0.0]).limit(64) < Honesty.of([1e-4, 0.0]).limit(4)


def test_a_sample_is_audited_and_of_each_server_at_least_some():
    draw = random.Random(0)
    assert len(to_audit(range(3), 0, draw)) == 3
    assert len(to_audit(range(20), 0, draw)) == LEAST_AUDITED
    chosen = [number for _ in range(200) for number in to_audit(range(24), LEAST_AUDITED, draw)]
    assert abs(len(chosen) / (200 * 24) - SHARE_AUDITED) < 0.01 and set(chosen) == set(range(24))
