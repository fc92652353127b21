"""The swarm's time while somebody moves the machine's clock, and what is said of it."""

import pytest

from pipelines.core.swarm_time import SwarmTime, is_rather_right, words_for_a_moved_clock

HOURS = 3600.0


class Clocks:
    """A machine's clock, which people set, and its time since the start, which nobody does."""

    def __init__(self):
        self.wall, self.steady = 1_000_000.0, 50.0
        self.time = SwarmTime(lambda: self.wall, lambda: self.steady)

    def pass_by(self, seconds):
        self.wall, self.steady = self.wall + seconds, self.steady + seconds


@pytest.mark.parametrize("jump", [6 * HOURS, -6 * HOURS, 10.0])
def test_a_clock_that_is_moved_does_not_move_the_swarms_time(jump):
    clocks = Clocks()
    clocks.pass_by(100.0)
    clocks.wall += jump
    clocks.pass_by(7.0)
    assert clocks.time() == pytest.approx(1_000_107.0)
    assert clocks.time.ahead == pytest.approx(jump)
    clocks.time.follow()
    assert (clocks.time.ahead, clocks.time()) == (0.0, clocks.wall)


def test_a_process_that_was_stopped_or_slept_for_an_hour_has_not_moved_its_clock():
    clocks = Clocks()
    clocks.pass_by(HOURS)
    assert clocks.time.ahead == 0.0


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
