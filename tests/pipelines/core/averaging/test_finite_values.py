"""One look at a tensor tells whether its values are finite."""

import pytest
import torch

from pipelines.core.averaging.reduce.finite_values import is_finite

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("place", [0, 517, 999])
def test_one_value_is_found_wherever_it_stands(dtype, value, place):
    values = torch.ones(1000, dtype=dtype)
    values[place] = float(value)
    assert not is_finite(values)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_float_is_finite(dtype):
    assert is_finite(torch.full((1000,), torch.finfo(dtype).max, dtype=dtype))


def test_nothing_at_all_and_integers_are_finite():
    assert is_finite(torch.empty(0))
    assert is_finite(torch.tensor([255], dtype=torch.uint8))
