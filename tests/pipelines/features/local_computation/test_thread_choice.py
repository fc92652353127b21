"""The number of threads follows what else a machine does; the machine is a table of paces, its time is virtual."""

import random

import pytest

from pipelines.features.local_computation.thread_choice import ThreadChoice, halves

ALONE = {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.5}
"""Samples a second, as a multiple of one thread's."""

BUSY = {1: 0.95, 2: 1.6, 4: 1.1, 8: 0.6}
"""Beside programs that keep some of the cores busy."""


def test_one_core_leaves_no_choice_and_64_leave_seven():
    assert halves(1) == [1] and halves(64) == [64, 32, 16, 8, 4, 2, 1]
    alone = ThreadChoice(halves(1))
    alone.note(1.0, 4)
    assert alone.num_threads == 1
    rates = {number: 10 - abs(number - 16) / 8 for number in halves(64)}
    assert Machine(0.2, halves(64)).chosen(rates) == 16


class Machine:
    """Takes the seconds of steps from a table, with noise."""

    def __init__(self, seconds_of_a_step, numbers=(1, 2, 4, 8)):
        self.choice, self.seconds_of_a_step = ThreadChoice(numbers), seconds_of_a_step
        self.random, self.now, self.num_samples = random.Random(0), 0.0, 0

    def train(self, rates, seconds):
        """Train for so long; return the samples a second."""
        started, before = self.now, self.num_samples
        while self.now < started + seconds:
            took = self.seconds_of_a_step / rates[self.choice.num_threads] * self.random.uniform(0.95, 1.1)
            self.choice.note(took, 4)
            self.now += took
            self.num_samples += 4
        return (self.num_samples - before) / (self.now - started)

    def chosen(self, rates):
        """Return the number after the trials that are under way."""
        while self.choice._trials:
            self.train(rates, 0.01)
        return self.choice.num_threads

    def best(self, rates):
        return 4 / self.seconds_of_a_step * max(rates.values())


@pytest.mark.parametrize(("seconds_of_a_step", "seconds_to_notice"), [(0.05, 60), (0.7, 60), (20.0, 1200)])
@pytest.mark.parametrize("changes", [[ALONE, BUSY, ALONE], [BUSY, ALONE, BUSY]])
def test_beside_other_programs_and_without_them_it_reaches_nine_tenths_of_the_best(
    seconds_of_a_step, seconds_to_notice, changes
):
    machine = Machine(seconds_of_a_step)
    for rates in changes:
        machine.train(rates, seconds_to_notice)
        assert machine.train(rates, 20 * seconds_to_notice) >= 0.9 * machine.best(rates)


def test_one_thread_notices_that_the_second_core_is_free_again():
    machine = Machine(0.3, numbers=(1, 2))
    busy, quiet = {1: 1.0, 2: 0.5}, {1: 1.0, 2: 1.9}
    machine.train(busy, 120)
    assert machine.chosen(busy) == 1
    machine.train(quiet, 60)
    assert machine.chosen(quiet) == 2


def test_beside_another_program_that_stays_trials_cost_little():
    machine = Machine(0.1, numbers=(1, 2))
    machine.random = random.Random(1)
    noisy = {1: 1.0, 2: 0.15}
    machine.train(noisy, 60)
    assert machine.train(noisy, 1000) >= 0.95 * machine.best(noisy) / 1.025, "the noise alone costs 2.5 %"


def test_noise_alone_does_not_change_the_number():
    machine, numbers = Machine(0.1, numbers=(1, 2)), set()
    machine.train({1: 1.0, 2: 1.03}, 30)
    for _ in range(50):
        machine.train({1: 1.0, 2: 1.03}, 10)
        if not machine.choice._trials:
            numbers.add(machine.choice.num_threads)
    assert len(numbers) == 1


def test_a_number_that_a_person_chose_stays():
    machine = Machine(0.1, numbers=(4,))
    machine.train({4: 1.0}, 100)
    assert machine.choice.num_threads == 4


def test_halves_are_tried_down_to_one_thread():
    assert [halves(cores) for cores in (1, 2, 6, 16)] == [[1], [2, 1], [6, 3, 1], [16, 8, 4, 2, 1]]
