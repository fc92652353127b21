"""Liars are named from a few audited candidates, honest servers never: pure decisions, on a model that has learned."""

import pytest
import torch
from false_drawings import drawings_of_liars, honest, in_bfloat16, in_int8
from learned_model import captions_and_codes, learned_model

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.features.serving.draw.audits import (
    EXACT,
    LEAST_AUDITED,
    POOL,
    SHARE_AUDITED,
    Calibration,
    DrawingAudits,
)
from pipelines.features.serving.draw.evidence import distances_from, excesses
from pipelines.features.serving.draw.requests import SamplingRequest
from pipelines.features.serving.server_blocklist import ServerBlocklist

NUM_AUDITED = 16


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return learned_model()


def a_sampling(seed, **options):
    text, _ = captions_and_codes(1, torch.Generator().manual_seed(100 + seed))
    options = SamplingOptions(**options)
    return SamplingRequest(revision="0" * 64, precision="", tokenizer="", input_ids=text, seed=seed, options=options)


def judged(audits, server, *measured, user=""):
    return audits.judge(a_sampling(0), server, dict(enumerate(measured)), user)


def test_a_distance_is_that_from_the_codes_interval_of_probability():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().repeat(4, 1)
    numbers = torch.tensor([0.4, 0.6, 0.8, 0.2], dtype=torch.float64)
    codes = torch.tensor([0, 0, 1, 2])
    found = distances_from(logits, numbers, codes, SamplingOptions())
    assert torch.allclose(found, torch.tensor([0.0, 0.1, 0.05, 0.55], dtype=torch.float64), atol=1e-7)
    greedy = distances_from(logits, numbers, codes, SamplingOptions(temperature=0))
    assert torch.allclose(greedy, torch.tensor([0.0, 0.0, 0.25, 0.25], dtype=torch.float64), atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        dict(top_p=0.8, guidance_scale=2.0),
        *(pytest.param(one, marks=pytest.mark.long) for one in ({}, dict(temperature=0), dict(top_k=3))),
    ],
)
def test_an_exact_server_is_off_by_rounding_alone(model, options):
    sampling = a_sampling(0, **options)
    measured = excesses(model, sampling, range(NUM_AUDITED), honest(model, sampling, NUM_AUDITED), batch_size=5)
    assert measured.shape == (NUM_AUDITED,) and float(measured.max()) < 1e-6


def test_an_image_prompt_is_nobodys_fault(model):
    given = torch.arange(12)[None]
    sampling = SamplingRequest(
        revision="", precision="", tokenizer="", input_ids=a_sampling(0).input_ids, image_prompt=given
    )
    codes = honest(model, sampling, 4, image_prompt=given)
    assert float(excesses(model, sampling, range(4), codes).max()) < 1e-6


@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(name, marks=pytest.mark.long) for name in ("float32", "int8"))]
)
def test_every_liar_is_named_and_no_honest_server(model, precision):
    rounded = dict(bfloat16=in_bfloat16, int8=in_int8).get(precision, lambda exact: exact)(model)
    audits = DrawingAudits(model, precision)
    audits.learn_calibration(a_sampling(50))
    for seed in range(2):
        sampling = a_sampling(seed)
        drawings = dict(
            drawings_of_liars(model, sampling, NUM_AUDITED, seed), honest=honest(rounded, sampling, NUM_AUDITED)
        )
        for name, drawn in drawings.items():
            server, measured = f"{name} {seed}", audits.compute_again(sampling, range(NUM_AUDITED), drawn)
            for number, excess in measured.items():
                if audits.judge(sampling, server, {number: excess}):
                    break
            assert audits.blocklist.avoids(server) == (name != "honest"), server


def test_a_liar_is_avoided_and_it_is_said_until_when_and_who_else_and_what_can_be_looked_at():
    audits = DrawingAudits(None, blocklist=ServerBlocklist(clock=lambda: 0.0))
    complaint = audits.judge(a_sampling(7), "liar", {3: 0.1, 5: 0.3}, "alice")
    assert (complaint.user, complaint.until) == ("alice", 600.0)
    assert complaint.claim.dict() == dict(
        server="liar", revision="0" * 64, precision="float32", num_audited=2, mean_excess=0.2,
        limit=EXACT.judge([0.0] * 2)[1], seed=7, prompt=0, candidate=5, excess=0.3,
    )  # fmt: skip
    assert str(complaint).endswith(
        "Its candidates are drawn again elsewhere, and it and the other servers of alice are avoided until 1970-01-01 "
        "00:10:00 UTC."
    )
    assert audits.blocklist.avoids("liar") and audits.blocklist.avoids("another", "alice")
    assert judged(audits, "honest", *[0.0] * 100) is None and not audits.blocklist.avoids("honest")


def test_a_damaged_model_of_the_auditor_accuses_nobody():
    audits = DrawingAudits(None)
    assert judged(audits, "honest", float("nan")) is None and not audits.blocklist.avoids("honest")


def test_only_the_last_candidates_of_a_server_count_and_one_flip_in_rounding_is_no_lie():
    audits = DrawingAudits(None)
    assert judged(audits, "server", EXACT.largest) is None
    assert judged(audits, "server", *[0.0] * POOL, 2 * EXACT.mean) is None
    calibration = Calibration.of([1e-4, 0.0])
    assert calibration.judge([0.0] * 64)[1] < calibration.judge([0.0] * 4)[1]


def test_a_sample_is_audited_and_of_each_server_at_least_some():
    audits = DrawingAudits(None, secret=0)
    assert len(audits.pick(range(3), 0)) == 3
    assert len(audits.pick(range(20), 0)) == LEAST_AUDITED
    chosen = [number for _ in range(200) for number in audits.pick(range(24), LEAST_AUDITED)]
    assert abs(len(chosen) / (200 * 24) - SHARE_AUDITED) < 0.01 and set(chosen) == set(range(24))
