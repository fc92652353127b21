"""A stranger's request is checked before anything is done for it; an honest one arrives as it was meant."""

import pytest
import torch
from tiny_run_parts import GRID, NUM_CODES, TEXT_LENGTH, tiny_model

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions, candidate_numbers
from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.draw.modalities.pictures import needed_bytes
from pipelines.features.serving.draw.requests import MOST_CANDIDATES, DrawRequest, SamplingRequest

CONFIG = tiny_model(32).config


def a_request(**changes):
    sampling = dict(
        revision="a" * 64,
        precision="float32",
        tokenizer="b" * 64,
        input_ids=torch.ones(1, TEXT_LENGTH, dtype=torch.int64),
        prompt=2,
        seed=-7,
        options=SamplingOptions(top_k=5, top_p=0.5, temperature=0.7, guidance_scale=2.0),
        image_prompt=torch.zeros(1, 3, dtype=torch.int64),
        every=4,
    )
    return DrawRequest(sampling=SamplingRequest(**sampling | changes), candidates=range(5, 9))


def test_a_request_arrives_as_it_was_sent():
    sent = a_request()
    read = DrawRequest.from_message(*sent.message(), CONFIG)
    assert read.candidates == range(5, 9)
    for name, value in vars(sent.sampling).items():
        other = getattr(read.sampling, name)
        assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value
    assert read.sampling.num_given == 3 and read.sampling.num_places(CONFIG) == GRID**2
    expected = candidate_numbers(-7, range(2, 3), range(5, 9), GRID**2)
    assert torch.equal(read.sampling.numbers(read.candidates, CONFIG), expected)


def test_who_wants_to_hear_rarely_gets_no_longer_turns():
    body, tensors = a_request().message()
    assert DrawRequest.from_message(body | dict(every=2**16), tensors, CONFIG).sampling.every == GRID


@pytest.mark.parametrize(
    "changes",
    [
        dict(number=0),
        dict(number=MOST_CANDIDATES + 1),
        dict(number=True),
        dict(first=-1),
        dict(first="0"),
        dict(seed=2.0),
        dict(seed=None),
        dict(prompt=2**40),
        dict(every=0),
        dict(revision=5),
        dict(precision="x" * 1000),
        dict(tokenizer=None),
        dict(sampling=None),
        dict(sampling=dict(window=2)),
        dict(sampling=dict(temperature=float("nan"))),
        dict(sampling=dict(temperature=-1.0)),
        dict(sampling=dict(guidance_scale=float("inf"))),
        dict(sampling=dict(top_p=0.0)),
        dict(sampling=dict(top_k=True)),
        dict(sampling=dict(top_k=2**80)),
        dict(sampling=dict(num_image_codes=2)),
        dict(sampling=dict(num_image_codes=-1)),
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(changes):
    body, tensors = a_request().message()
    with pytest.raises(Refusal) as refused:
        DrawRequest.from_message(body | changes, tensors, CONFIG)
    assert refused.value.code == "invalid" and len(refused.value.text) < 500


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        dict(input_ids=torch.ones(2, TEXT_LENGTH, dtype=torch.int32)),
        dict(input_ids=torch.ones(1, TEXT_LENGTH + 1, dtype=torch.int32)),
        dict(input_ids=torch.ones(1, TEXT_LENGTH)),
        dict(input_ids=torch.full((1, TEXT_LENGTH), 32, dtype=torch.int32)),
        dict(input_ids=torch.full((1, TEXT_LENGTH), -1, dtype=torch.int32)),
        dict(input_ids=torch.ones(TEXT_LENGTH, dtype=torch.int32)),
        dict(image_prompt=torch.zeros(1, GRID**2, dtype=torch.int32)),
        dict(image_prompt=torch.full((1, 3), NUM_CODES, dtype=torch.int32)),
        dict(image_prompt=torch.zeros(3, dtype=torch.int32)),
        dict(another=torch.zeros(1)),
    ],
    ids=lambda tensors: " ".join(f"{name}{tuple(tensor.shape)}" for name, tensor in tensors.items()) or "none",
)
def test_tensors_of_another_shape_or_range_are_refused(tensors):
    body, sent = a_request().message()
    with pytest.raises(Refusal) as refused:
        DrawRequest.from_message(body, sent | tensors if tensors else {}, CONFIG)
    assert refused.value.code == "invalid"


def test_what_a_drawing_takes_is_known_before():
    one = needed_bytes(CONFIG, 1, is_guided=False)
    assert needed_bytes(CONFIG, 10, is_guided=False) == 10 * one and needed_bytes(CONFIG, 1, is_guided=True) > one
