"""The number of threads of a drawing follows what else the machine does: a table, in virtual time."""

import os
import subprocess
import sys

import pytest

from pipelines.tasks.text_to_image.generation.drawing_threads import DrawingThreads


def drawn(rates, num_codes, numbers=(1, 2)):
    """Draw 4 codes a pass; return the seconds, and the threads of each pass."""
    now = 0.0
    threads, taken = DrawingThreads(numbers, clock=lambda: now), []
    for done in range(4, num_codes + 1, 4):
        taken.append(threads.num_threads)
        now += 4 / rates[threads.num_threads]
        threads.note(done)
    return now, taken


@pytest.mark.parametrize("seconds_of_a_pass", [0.01, 0.3])
@pytest.mark.parametrize("rates", [{1: 1.0, 2: 1.8}, {1: 1.0, 2: 0.3}], ids=["quiet", "busy"])
def test_most_passes_take_the_faster_number(rates, seconds_of_a_pass):
    rates = {number: 4 * rate / seconds_of_a_pass for number, rate in rates.items()}
    best = max(rates, key=rates.__getitem__)
    seconds, taken = drawn(rates, 4 * 1024)
    assert set(taken[-100:]) == {best}
    assert seconds < 1.2 * 4 * 1024 / rates[best]


def test_one_number_is_not_measured():
    assert set(drawn({1: 10.0}, 4000, numbers=(1,))[1]) == {1}


PROGRAM = """
import torch
from pipelines.tasks.text_to_image.generation.drawing_threads import measured_threads
torch.set_num_threads(2)
numbers = set()
with measured_threads(torch.device("cpu")) as note:
    for done in range(1, 400):
        note(done)
        numbers.add(torch.get_num_threads())
print(sorted(numbers), torch.get_num_threads())
"""


@pytest.mark.parametrize(("environment", "expected"), [({}, "[1, 2] 2"), ({"OMP_NUM_THREADS": "2"}, "[2] 2")])
def test_it_leaves_the_number_as_it_was_and_respects_what_the_person_said(environment, expected):
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[-2] == expected
