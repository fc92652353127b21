"""What is said of a clock that was moved, and who decides which time is right."""

import pytest

from pipelines.features.clock import is_rather_right, words_for_a_moved_clock

HOURS = 3600.0


@pytest.mark.parametrize(
    ("ahead", "others", "is_right"),
    [
        (6 * HOURS, [0.1, -0.2, 0.0], False),  # somebody has moved it
        (
            6 * HOURS,
            [6 * HOURS, 6 * HOURS + 1],
            True,
        ),  # a virtual machine was stopped, and its clock set
        (6 * HOURS, [0.0, 6 * HOURS, 0.1], False),
        (-6 * HOURS, [0.0], False),
        (6 * HOURS, [], False),
    ],
)
def test_the_others_decide_which_time_is_right(ahead, others, is_right):
    assert is_rather_right(ahead, others) == is_right


def test_a_moved_clock_is_said_in_one_line_with_what_to_do():
    assert words_for_a_moved_clock(6 * HOURS, is_followed=False) == (
        "This machine's clock was set forward by 6.0 h: this peer goes on with the time as it was. "
        "Set the clock right: sudo timedatectl set-ntp true"
    )
    assert "set back by 10.0 s, and now agrees" in words_for_a_moved_clock(-10.0, is_followed=True)
