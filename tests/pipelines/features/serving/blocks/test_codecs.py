"""Hidden states come over the wire as each codec promises, and nothing else is taken for hidden states."""

import pytest
import torch

from pipelines.features.serving.blocks.codecs import CODECS, WrongStatesError, check_codec, decode, encode

SHAPE = (2, 3, 4, 64)
ERROR = {"float32": 0.0, "float16": 5e-4, "int8": 1 / 127}
"""Of a position's largest value."""


def made_up(seed=0):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-3, 3, 4)[:, None]


@pytest.mark.parametrize("codec", CODECS)
def test_states_come_back_within_the_codecs_error_of_each_position(codec):
    states = made_up()
    found = decode(encode(states, codec), codec, SHAPE)
    assert found.dtype == torch.float32
    assert ((found - states).abs() <= ERROR[codec] * states.abs().amax(-1, keepdim=True)).all()
    assert torch.equal(decode(encode(found, codec), codec, SHAPE), found) or codec == "int8"


def test_eight_bits_take_a_byte_a_value_and_zeros_stay_zeros():
    parts = encode(torch.zeros(SHAPE), "int8")
    assert parts["values"].dtype == torch.int8 and parts["scales"].numel() == 24
    assert torch.equal(decode(parts, "int8", SHAPE), torch.zeros(SHAPE))


def test_half_precision_is_cut_at_its_largest_number():
    found = decode(encode(torch.full(SHAPE, 1e9), "float16"), "float16", SHAPE)
    assert found.unique().tolist() == [65504.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.pop("values"),
        lambda parts: parts.update(values=parts["values"][:1]),
        lambda parts: parts.update(values=parts["values"].double()),
        lambda parts: parts.update(scales=parts["scales"].expand(SHAPE)),
        lambda parts: parts.update(scales=parts["scales"] * torch.nan),
        lambda parts: parts.update(scales=parts["scales"] * torch.inf),
    ],
)
def test_other_tensors_are_no_states(change):
    parts = encode(made_up(), "int8")
    change(parts)
    with pytest.raises(WrongStatesError, match="expected"):
        decode(parts, "int8", SHAPE)


def test_an_unknown_codec_is_named():
    with pytest.raises(ValueError, match="'uniform8bit', expected one of float32, float16, int8"):
        check_codec("uniform8bit")
