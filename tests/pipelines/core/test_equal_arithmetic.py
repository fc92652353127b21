"""What stands for torch's own operations where peers must agree in every bit, against the plain formulas in float64."""

import math

import pytest
import torch

from pipelines.core.equal_arithmetic import SPAN, is_finite, norm, power, product, root_, squared_norm, sum_


def made_up(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_root_is_the_nearest_number_on_every_processor(kind):
    values = torch.cat([made_up((6144,), 0).abs(), torch.tensor([0.0, 1e-45, 3e38])]).to(kind)
    expected = torch.tensor([math.sqrt(value) for value in values.tolist()], dtype=torch.float64).to(kind)
    assert torch.equal(root_(values), expected)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 200, 100_000])
def test_a_power_is_that_of_the_c_library_but_for_rounding(exponent):
    assert power(0.96, exponent) == pytest.approx(0.96**exponent, rel=1e-10)
    assert power(0.0, exponent) == 0.0**exponent


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 1000])
def test_a_sum_is_that_over_the_first_axis_with_the_second_half_added_to_the_first(number):
    values = made_up((number, 3), 0).double()
    torch.testing.assert_close(sum_(values.clone()), values.sum(0))
    if number == 3:
        assert torch.equal(sum_(values.clone()), (values[0] + values[2]) + values[1])


@pytest.mark.parametrize("number", [1, 7, 1000, SPAN, 2 * SPAN + 77])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_norm_is_that_of_float64(number, scale):
    values = scale * made_up((number,), 0)
    expected = math.sqrt(math.fsum(value * value for value in values.tolist()))
    assert norm(values) == pytest.approx(expected, rel=1e-6)
    parts = values[:3], values[3:]
    assert norm(*parts) == pytest.approx(expected, rel=1e-6)


def test_the_norm_of_a_tensor_is_that_of_its_spans_and_of_nothing_0():
    values = made_up((2 * SPAN + 77,), 0)
    assert norm(values) == math.sqrt(math.fsum(squared_norm(part) for part in values.split(SPAN)))
    assert norm(values.view(-1, 1)) == norm(values)
    assert norm() == norm(torch.zeros(0)) == 0.0


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_norm_with_a_value_that_is_not_finite_is_not_finite(value):
    values = made_up((1000 + 5,), 0)
    values[-1] = float(value)
    assert not math.isfinite(norm(values))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 1, 2), (5, 1000, 7), (16, 2**15, 16), (1, 2**17, 1)])
def test_a_product_is_that_of_float64_but_for_the_last_bits_of_what_is_multiplied(rows, inner, columns):
    one, other = made_up((rows, inner), 0), made_up((inner, columns), 1)
    one[0] *= 1e-20
    found, exact = product(one, other), one.double() @ other.double()
    lengths = one.double().norm(dim=1)[:, None] * other.double().norm(dim=0)
    assert ((found - exact).abs() <= 1e-5 * lengths).all()
    assert torch.equal(product(torch.zeros_like(one), other), torch.zeros_like(exact))


def test_a_product_is_exact_whatever_the_order_of_its_sums():
    one, other = made_up((4, 3001), 0), made_up((3001, 5), 1)
    shuffled = torch.randperm(3001, generator=torch.Generator().manual_seed(2))
    assert torch.equal(product(one[:, shuffled], other[shuffled]), product(one, other))
    negative = -one
    assert torch.equal(product(negative, other), -product(one, other))


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
