"""Which micro-batch is chosen on machines that are busy in spells, by a simulated clock."""

import random

import pytest

from pipelines.features.local_computation.micro_batch import choose_micro_batch
from pipelines.features.local_computation.size_choice import SizeChoice

LARGEST = 64
NUM_PREFETCHED = 1024


class Machine:
    """A micro-batch takes `fixed` seconds and some more for each sample; longer while another program is busy."""

    def __init__(self, seed, *, fixed=0.3, per_sample=0.05, slower=lambda seconds, drawn: 1.0):
        self.drawn = random.Random(seed)
        self.clock = self.drawn.uniform(0, 100)
        self._fixed, self._per_sample, self._slower = fixed, per_sample, slower
        self.seconds_of_trials = 0.0

    def quiet(self, size):
        return self._fixed + self._per_sample * size

    def compute(self, size):
        seconds = self.quiet(size) * self._slower(self.clock, self.drawn)
        self.clock += seconds
        return seconds

    def measure(self, size):
        seconds = self.compute(size)
        self.seconds_of_trials += seconds
        return seconds

    def share_of_the_best_rate(self, size):
        best = max(other / self.quiet(other) for other in (1, 2, 4, 8, 16, 32, 64))
        return size / self.quiet(size) / best


def in_spells(length, factor):
    return lambda seconds, drawn: factor if int(seconds / length) % 2 == 0 else 1.0


def at_random(factor):
    return lambda seconds, drawn: factor if drawn.random() < 0.5 else 1.0


def busy_until(end, factor):
    return lambda seconds, drawn: factor if seconds < end else 1.0


def train(choice, machine, minutes):
    """Train with batches that are read ahead, and measure between them when that is due."""
    size = choice.size
    ahead, end, num_samples = [size] * max(8, NUM_PREFETCHED // size), machine.clock + 60 * minutes, 0
    machine.seconds_of_trials = 0.0
    while machine.clock < end:
        size = ahead.pop(0)
        if len(ahead) < max(8, NUM_PREFETCHED // choice.size):
            ahead.append(choice.size)
        choice.note_step(machine.compute(size), size)
        num_samples += size
        if (size := choice.next_trial()) is not None:
            choice.note_trial(machine.measure(size))
    return num_samples


BUSY = {
    "spells of 1 s, 3 times slower": in_spells(1.0, 3),
    "spells of 3 s, 3 times slower": in_spells(3.0, 3),
    "spells of 10 s, 3 times slower": in_spells(10.0, 3),
    "spells of 3 s, twice slower": in_spells(3.0, 2),
    "spells of a minute, 4 times slower": in_spells(60.0, 4),
    "every other micro-batch, 3 times slower": at_random(3),
    "ten times slower in the first minute": busy_until(130.0, 10),
}


@pytest.mark.parametrize("fixed", [0.3, 0.05])
@pytest.mark.parametrize("slower", BUSY.values(), ids=BUSY)
def test_on_a_machine_busy_in_spells_few_stay_below_70_per_cent_of_the_best_rate(slower, fixed):
    machines = [Machine(seed, fixed=fixed, slower=slower) for seed in range(100)]
    num_bad = 0
    for machine in machines:
        choice = SizeChoice(LARGEST, choose_micro_batch(machine.measure, largest=LARGEST))
        train(choice, machine, minutes=4)
        num_bad += machine.share_of_the_best_rate(choice.size) < 0.7
        assert machine.seconds_of_trials < 0.2 * 4 * 60
    assert num_bad <= 5


@pytest.mark.parametrize("start", [1, 2, 16, 64])
def test_a_bad_choice_is_found_on_a_quiet_machine_too_although_the_pace_does_not_change(start):
    machine = Machine(0, per_sample=0.01, fixed=0.1)  # 32 is the smallest with 95 % of the best rate
    choice = SizeChoice(LARGEST, start)
    train(choice, machine, minutes=10)
    assert machine.share_of_the_best_rate(choice.size) > 0.85
    assert machine.seconds_of_trials < 0.04 * 10 * 60


def test_a_machine_that_does_nothing_else_is_measured_again_rarely_and_one_that_changes_sooner():
    machine = Machine(0)
    choice = SizeChoice(LARGEST, choose_micro_batch(machine.measure, largest=LARGEST))
    train(choice, machine, minutes=60)
    assert choice.size == 64
    assert machine.seconds_of_trials < 0.04 * 60 * 60
    quiet = machine.quiet
    machine.quiet = lambda size: quiet(size) * (4 if size > 32 else 1)  # what does not fit beside others swaps
    train(choice, machine, minutes=12)
    assert choice.size == 32


def test_memory_that_is_short_for_a_moment_changes_nothing_and_ends_in_time():
    choice = SizeChoice(LARGEST, 16)
    for _ in range(2000):
        choice.note_step(1.0, 16)
        if choice.next_trial() is not None:
            choice.note_trial(None)
    assert choice.size == 16


def test_a_size_that_no_longer_fits_is_not_chosen():
    choice = SizeChoice(LARGEST, 8)
    for _ in range(2000):
        choice.note_step(1.0, choice.size)
        if (size := choice.next_trial()) is not None:
            choice.note_trial(0.5 + 0.01 * size if size <= 24 else None)
    assert choice.size == 24, "half as much again as 16"


def test_who_may_compute_one_sample_at_a_time_only_measures_nothing_again():
    choice = SizeChoice(1, 1)
    for pace in [1.0] * 100 + [5.0] * 100:
        choice.note_step(pace, 1)
        assert choice.next_trial() is None
