"""The swarm's time while somebody moves the machine's clock."""

import pytest

from pipelines.core.swarm_time import SwarmTime

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
