"""Tokens follow from weights, prompt, seed and place alone; who writes something else is found out."""

import copy
import json
import re

import pytest
import torch
from tiny_models import LANGUAGE_MODELS, tiny_language_model

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, choose_codes
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.draw.audits import DrawingAudits
from pipelines.features.serving.draw.engine import DrawEngine
from pipelines.features.serving.draw.evidence import drawn_here
from pipelines.features.serving.draw.modalities.texts import TEXTS, counted
from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest

VOCABULARY, POSITIONS, NUM_TOKENS = 50, 64, 24
ENDS = [3, 4, 5]


@pytest.fixture(params=LANGUAGE_MODELS)
def model(request, tmp_path):
    torch.set_num_threads(1)
    found = tiny_language_model(tmp_path, request.param)
    found.config.eos_token_id = ENDS
    return found


@pytest.fixture
def gpt2(tmp_path):
    torch.set_num_threads(1)
    found = tiny_language_model(tmp_path, "gpt2")
    found.config.eos_token_id = ENDS
    return found


def a_sampling(*ids, seed=0, num_tokens=NUM_TOKENS, every=5, **options):
    return SamplingRequest(
        revision="a" * 64,
        precision="float32",
        tokenizer="b" * 64,
        input_ids=torch.tensor([ids or (7, 8, 9)]),
        seed=seed,
        every=every,
        options=SamplingOptions(num_image_codes=num_tokens, **options),
    )


@torch.no_grad()
def written_plainly(model, sampling, candidates):
    """Return the same by the plain formula: the whole text is read again for each token."""
    rows = []
    for numbers in sampling.numbers(candidates, model.config):
        tokens = []
        for number in numbers:
            if tokens and tokens[-1] in ENDS:
                tokens.append(tokens[-1])
                continue
            whole = torch.cat([sampling.input_ids, torch.tensor([tokens], dtype=torch.int64)], dim=1)
            logits = model(whole, use_cache=False).logits[:, -1].float()
            tokens.append(int(choose_codes(logits, number[None], sampling.options)))
        rows.append(tokens)
    return torch.tensor(rows)


IN_LONG_TESTS = [pytest.param(one, marks=pytest.mark.long) for one in ({}, dict(top_p=0.5))]
OPTIONS = [dict(top_k=8, temperature=0.7), dict(temperature=0), *IN_LONG_TESTS]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_texts_are_those_of_the_plain_formula(model, options):
    sampling = a_sampling(seed=-3, **options)
    written = drawn_here(model, sampling, range(2, 8))
    assert torch.equal(written, written_plainly(model, sampling, range(2, 8)))
    counts, last = counted(written, model.config)
    for row, own, end in zip(written, counts, last, strict=True):
        assert set(row[~own].tolist()) <= {int(end)} and not set(row[own][:-1].tolist()) & set(ENDS)


def test_a_greedy_text_is_that_of_transformers(gpt2):
    sampling = a_sampling(temperature=0)
    own = drawn_here(gpt2, sampling, range(1))
    expected = gpt2.generate(
        sampling.input_ids, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=ENDS, pad_token_id=0
    )
    length = int(counted(own, gpt2.config)[0].sum())
    assert own[0, :length].tolist() == expected[0, 3 : 3 + length].tolist()


def test_a_shorter_text_is_the_beginning_of_a_longer_one(gpt2):
    whole, part = (drawn_here(gpt2, a_sampling(num_tokens=number), range(6)) for number in (40, 7))
    assert torch.equal(part, whole[:, :7])


def test_previews_come_in_the_wished_steps_and_all_places_are_there_at_the_end(gpt2):
    sampling = a_sampling(every=5)
    seen = list(TEXTS.stream(gpt2, [sampling], sampling.numbers(range(8), gpt2.config), 8))
    assert [part.shape[2] for part in seen][-1] == NUM_TOKENS
    assert all(part.shape[2] % 5 == 0 for part in seen[:-1])
    assert all(torch.equal(part, seen[-1][:, :, : part.shape[2]]) for part in seen)


def test_clients_share_batches_only_where_prompts_are_equally_long(gpt2):
    import queue

    from pipelines.features.serving.draw.engine import Job

    samplings = [
        a_sampling(7, 8, seed=1),
        a_sampling(9, 8, seed=2),
        a_sampling(9, 8, 7, seed=3),
        a_sampling(7, 8, seed=4, top_k=3),
    ]
    jobs = []
    for number, sampling in enumerate(samplings):
        news = queue.Queue()
        request = DrawRequest(sampling=sampling, candidates=range(3))
        jobs.append((sampling, news, Job(client=number, model=gpt2, request=request, tell=news.put)))
    assert [job.kind == jobs[0][2].kind for _, _, job in jobs] == [True, True, False, False]
    engine = DrawEngine()
    for _, _, job in jobs:
        engine.submit(job)
    with engine:
        for sampling, news, _ in jobs:
            parts = []
            while (what := news.get(timeout=60)) is not None:
                parts.append(what)
            assert torch.equal(torch.cat(parts, dim=1).long(), drawn_here(gpt2, sampling, range(3)))


def test_a_request_arrives_as_it_was_sent(gpt2):
    sent = DrawRequest(sampling=a_sampling(7, 8, 9, 10, seed=2, top_k=5), candidates=range(5, 9))
    read = DrawRequest.from_message(*sent.message(), gpt2.config)
    assert read.candidates == sent.candidates and read.sampling.options == sent.sampling.options
    assert torch.equal(read.sampling.input_ids, sent.sampling.input_ids)
    assert read.sampling.num_places(gpt2.config) == NUM_TOKENS


@pytest.mark.parametrize(
    ("sampling", "tensors"),
    [
        (dict(num_image_codes=None), {}),
        (dict(num_image_codes=0), {}),
        (dict(num_image_codes=POSITIONS - 2), {}),
        (dict(num_image_codes=2**31), {}),
        (dict(guidance_scale=2.0), {}),
        ({}, dict(image_prompt=torch.zeros(1, 3, dtype=torch.int32))),
        ({}, dict(input_ids=torch.zeros(1, 0, dtype=torch.int32))),
        ({}, dict(input_ids=torch.zeros(2, 3, dtype=torch.int32))),
        ({}, dict(input_ids=torch.zeros(3, dtype=torch.int32))),
        ({}, dict(input_ids=torch.zeros(1, 3))),
        ({}, dict(input_ids=torch.full((1, 3), VOCABULARY, dtype=torch.int32))),
        ({}, dict(input_ids=torch.full((1, 3), -1, dtype=torch.int32))),
        ({}, dict(input_ids=torch.zeros(1, POSITIONS, dtype=torch.int32))),
    ],
    ids=str,
)
def test_what_no_model_of_these_sizes_can_write_is_refused(gpt2, sampling, tensors):
    body, sent = DrawRequest(sampling=a_sampling(), candidates=range(2)).message()
    body["sampling"] |= sampling
    with pytest.raises(Refusal) as refused:
        DrawRequest.from_message(body, sent | tensors, gpt2.config)
    assert refused.value.code == "invalid" and len(refused.value.text) < 500


def test_what_a_text_takes_is_known_before(gpt2):
    config = gpt2.config
    one, more, longer = (
        TEXTS.needed_bytes(DrawRequest(sampling=sampling, candidates=range(number)), config)
        for sampling, number in ((a_sampling(), 1), (a_sampling(), 10), (a_sampling(num_tokens=2 * NUM_TOKENS), 1))
    )
    keys_and_values = 2 * 4 * 32 * (3 + NUM_TOKENS) * 4  # layers, width and positions of the tiny model, float32
    assert one > keys_and_values and more > 8 * one and longer > one
    assert TEXTS.most_bytes_of_one(config) >= one


def test_a_damaged_model_is_an_error(gpt2):
    with torch.no_grad():
        gpt2.transformer.ln_f.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="logits are not finite"):
        drawn_here(gpt2, a_sampling(), range(2))


def with_noise(model, share):
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter += share * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return noisy


def going_on_behind_the_end(model, sampling, candidates):
    tokens = drawn_here(model, sampling, candidates)
    counts, last = counted(tokens, model.config)
    return torch.where(counts, tokens, (last[:, None] + 1) % VOCABULARY)


LIARS = {
    "other temperature": lambda model, sampling, some: drawn_here(
        model, a_sampling(seed=sampling.seed, temperature=0.7), some
    ),
    "other seed": lambda model, sampling, some: drawn_here(model, a_sampling(seed=sampling.seed + 1), some),
    "10 % noise": lambda model, sampling, some: drawn_here(with_noise(model, 0.1), sampling, some),
    "another end": going_on_behind_the_end,
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_liar_is_named_and_an_honest_server_is_not(gpt2, liar):
    audits, some = DrawingAudits(gpt2), range(16)
    for seed in range(2):
        sampling = a_sampling(seed=seed)
        honest = audits.compute_again(sampling, some, drawn_here(gpt2, sampling, some))
        assert audits.judge(sampling, "honest", honest) is None
        audits.judge(sampling, "liar", audits.compute_again(sampling, some, LIARS[liar](gpt2, sampling, some)))
    assert audits.blocklist.avoids("liar")


def test_honest_rounding_to_bfloat16_is_no_lie(gpt2):
    rounded, some, audits = copy.deepcopy(gpt2), range(32), DrawingAudits(gpt2, "bfloat16")
    TEXTS.rounded(rounded, "bfloat16")
    audits.learn_calibration(a_sampling(seed=9))
    for seed in range(4):
        sampling = a_sampling(seed=seed)
        found = audits.compute_again(sampling, some, drawn_here(rounded, sampling, some))
        assert audits.judge(sampling, "honest", found) is None


def test_models_that_keep_no_positions_and_precisions_of_pictures_are_refused(tmp_path, gpt2):
    with pytest.raises(ValueError, match="int8 is for runs that draw pictures"):
        TEXTS.rounded(gpt2, "int8")
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="mamba")))
    with pytest.raises(ValueError, match=re.escape("A model of type mamba cannot be served: its configuration lacks")):
        TEXTS.read(tmp_path)
