"""What a server is asked to rank is checked before it is decoded."""

import pytest
import torch

from pipelines.core.swarm.streams.refusals import Refusal
from pipelines.features.serving.draw.ranking.requests import MOST_CANDIDATES, MOST_CHARACTERS, RankRequest
from pipelines.tasks.text_to_image.image_codes.vqgan_config import VQGANConfig

CONFIG = VQGANConfig(image_size=32, codebook_size=12, channels=32, channel_multipliers=(1, 1, 1, 1))
CODES = torch.arange(32, dtype=torch.int64).reshape(2, 16) % 12


def test_a_request_arrives_as_it_was_sent():
    read = RankRequest.from_message(*RankRequest(caption="a bird", codes=CODES).message(), CONFIG)
    assert read.caption == "a bird" and torch.equal(read.codes, CODES)


@pytest.mark.parametrize(
    "body",
    [
        dict(do="draw"),
        dict(caption=None),
        dict(caption=5),
        dict(caption=" \n"),
        dict(caption="x" * (MOST_CHARACTERS + 1)),
        dict(caption=b"bytes"),
    ],
    ids=lambda body: ",".join(f"{name}={str(value)[:9]!r}" for name, value in body.items()),
)
def test_values_that_make_no_sense_are_refused(body):
    honest, tensors = RankRequest(caption="a bird", codes=CODES).message()
    refuses(honest | body, tensors)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        dict(codes=CODES.int(), x=CODES.int()),
        dict(codes=CODES),
        dict(codes=CODES.float()),
        dict(codes=CODES[0].int()),
        dict(codes=CODES[None].int()),
        dict(codes=CODES[:0].int()),
        dict(codes=CODES[:, :-1].int()),
        dict(codes=CODES.int() + 1),
        dict(codes=CODES.int() - 1),
        dict(codes=torch.zeros(MOST_CANDIDATES + 1, 16, dtype=torch.int32)),
        dict(codes=torch.zeros(2**16, 0, dtype=torch.int32)),
    ],
    ids=lambda tensors: ",".join(f"{name} {tuple(one.shape)} {one.dtype}" for name, one in tensors.items()) or "none",
)
def test_codes_of_another_shape_or_range_are_refused(tensors):
    refuses(RankRequest(caption="a bird", codes=CODES).message()[0], tensors)


def refuses(body, tensors):
    with pytest.raises(Refusal) as refused:
        RankRequest.from_message(body, tensors, CONFIG)
    assert refused.value.code == "invalid" and len(refused.value.text) < 200
