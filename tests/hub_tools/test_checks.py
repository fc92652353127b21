"""A setting that cannot be used is named, with what was seen and what was expected."""

import math
from types import SimpleNamespace

import pytest
import torch

from hub_tools.checks import check_choice, check_counts, check_loaded, check_positive


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (check_positive, 0, "hours is 0; expected a number above 0."),
        (check_positive, float("nan"), "hours is nan; expected a number above 0."),
        (check_counts, 0.5, "hours is 0.5; expected at least 1."),
    ],
)
def test_a_number_that_is_too_small_is_refused(check, value, message):
    with pytest.raises(ValueError, match=message):
        check(SimpleNamespace(days=3, hours=value), "days", "hours")


def test_what_is_left_out_passes():
    check_positive(SimpleNamespace(hours=None), "hours")
    check_counts(SimpleNamespace(hours=None), "hours")


def test_a_value_that_is_no_choice_is_refused_with_the_choices():
    check_choice("bits", 8, (8, 32))
    with pytest.raises(ValueError, match=r"bits is 16; expected one of 8, 32\."):
        check_choice("bits", 16, (8, 32))


@pytest.mark.parametrize(
    ("missing", "others", "weight", "said"),
    [
        ({"b", "a"}, (), 1.0, r"lack a \(2 such parameters\)"),
        ((), {"head"}, 1.0, r"have the unknown head \(1 such parameters\)"),
        ((), (), math.nan, r"are not finite numbers in weight \(1 such parameters\)"),
        ((), (), math.inf, "are not finite numbers in weight"),
    ],
)
def test_a_checkpoint_has_all_parameters_as_finite_numbers_and_no_others(missing, others, weight, said):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, weight)
    found = dict(missing_keys=missing, unexpected_keys=others)
    with pytest.raises(ValueError, match=f"The weights of org/run {said}"):
        check_loaded(model, found, "org/run", may_have_others=False)
    if others:
        check_loaded(model, found, "org/run")
