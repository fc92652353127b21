"""8-bit levels with a scale for each block: as bitsandbytes has them but for rounding, and the same bits everywhere."""

import hashlib

import pytest
import torch
from bitsandbytes import functional as quantization

from pipelines.core.block_quantisation import LEAST_SCALE, dequantise, levels, quantise


def there_and_back(values, block_size=256, is_signed=True):
    kept, scales = torch.empty(len(values), dtype=torch.uint8), torch.empty(-(-len(values) // block_size))
    quantise(values, block_size, is_signed, kept, scales)
    return kept, scales, dequantise(kept, block_size, is_signed, scales)


@pytest.mark.parametrize(
    ("is_signed", "expected"),
    [
        (True, "035c4114538df2a03bbcb4d8a39b9325d26d84a00cf6cf29018d1a6608ab14c4"),
        (False, "02a9b523750e21348029626da435f2adadb851b687d86349cd20752f9255de26"),
    ],
)
def test_the_levels_are_those_of_bitsandbytes_but_for_the_last_bit(is_signed, expected):
    own, theirs = levels(is_signed), quantization.create_dynamic_map(signed=is_signed)
    assert len(own) == 256 and torch.allclose(own, theirs, rtol=1e-6, atol=0) and (own == theirs).float().mean() > 0.5
    assert hashlib.sha256(own.numpy().tobytes()).hexdigest() == expected, "the same bits on all machines"


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-3, 1e-30])
@pytest.mark.parametrize("number", [5 * 256 + 77, 10_000])
def test_values_are_quantised_as_the_library_does_but_for_rounding(is_signed, scale, number):
    values = scale * torch.randn(number, generator=torch.Generator().manual_seed(0)) ** 3
    values = values if is_signed else values.abs()
    values[256:512] = 0.0
    kept, scales, read = there_and_back(values, is_signed=is_signed)
    code = quantization.create_dynamic_map(signed=is_signed)
    expected, quant_state = quantization.quantize_blockwise(values, code=code, blocksize=256)
    difference = (kept.int() - expected.int()).abs()
    difference[256:512] = 0
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
    assert torch.equal(scales, quant_state.absmax)
    assert torch.equal(read[256:512], torch.zeros(256)) and not torch.signbit(read[256:512]).any()
    torch.testing.assert_close(read, levels(is_signed)[kept.int()] * scales.repeat_interleave(256)[:number])


@pytest.mark.parametrize("value", [LEAST_SCALE / 2, 1e-45, 0.0])
def test_a_block_of_values_that_are_all_too_small_is_one_of_zeros(value):
    _, scales, read = there_and_back(torch.full((300,), value))
    assert not scales.any() and not read.any()
    _, scales, read = there_and_back(torch.full((300,), LEAST_SCALE))
    assert torch.equal(scales, torch.full((2,), LEAST_SCALE)) and torch.equal(read, torch.full((300,), LEAST_SCALE))
