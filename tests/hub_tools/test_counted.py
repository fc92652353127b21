"""Counts in messages are followed by the singular or the plural."""

import pytest

from hub_tools.counted import counted, duration


def test_one_thing_is_no_plural():
    assert [counted(number, "peer") for number in (0, 1, 1200)] == ["0 peers", "1 peer", "1,200 peers"]
    assert [counted(number, "address", "addresses") for number in (1, 2)] == ["1 address", "2 addresses"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "0.4 s"),
        (99.4, "99 s"),
        (100.0, "2 min"),
        (3569.0, "59 min"),
        (3571.0, "1 h 0 min"),
        (11_100.0, "3 h 5 min"),
    ],
)
def test_a_length_of_time_is_told_in_the_units_that_people_use(seconds, expected):
    assert duration(seconds) == expected
