"""A setting that cannot be used is named, with what was seen and what was expected."""

from types import SimpleNamespace

import pytest

from hub_tools.checks import check_choice, check_counts, check_positive


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
