"""With how many threads a machine computes: measured while it works, and again when other programs come or go.

OpenMP's threads wait for each other at the end of every operation, and spin meanwhile. A program that keeps one of two
cores busy therefore makes two threads slower than one, by half and more.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence

STEPS_OF_A_TRIAL = 8
"""The first step with another number of threads starts or wakes them, and is not counted unless it is the only one."""

SECONDS_OF_A_TRIAL, SECONDS_OF_A_LONG_STEP = 2.0, 10.0
"""Fewer steps do if they take so long: two, or one."""

STEPS_TO_COMPARE = 5
GAIN_WORTH_A_CHANGE = 1.08
CHANGE_OF_PACE = 1.25
"""Steps that take so many times as long, or as short, mean that another program has started or ended."""

SHARE_OF_TRIALS = 0.05
"""Trials of other numbers than the chosen one take at most about this share of the time."""

CLEARLY_SLOWER = 1.5
"""A number that takes so many times as long as the best one in two steps is tried no longer."""

LEAST_SECONDS_BETWEEN_TRIALS, LONGEST_PATIENCE = 15.0, 40.0
"""Twice as long after each trial that changed nothing, up to this: on a noisy machine the pace changes all the time."""


def halves(num_cores: int) -> list[int]:
    """Return the numbers of threads worth trying: all cores, and halves of that down to one."""
    numbers = [num_cores]
    while numbers[-1] > 1:
        numbers.append(numbers[-1] // 2)
    return numbers


class ThreadChoice:
    """Which number of threads the next step takes, from what the last steps took. Pure: it is told the seconds.

    Each candidate is tried at the start. Later the neighbours of the best one are tried again, and theirs if they are
    faster: soon after steps have become slower or faster, and otherwise now and then, because one thread does not
    notice that the other cores are free again.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = sorted(set(numbers))
        self.num_threads = self._numbers[-1]
        self._recent: deque[float] = deque(maxlen=STEPS_TO_COMPARE)
        self._usual = math.nan
        """Seconds per unit of weight with the chosen number, when it was chosen."""

        self._best = self.num_threads
        self._trials: dict[int, list[tuple[float, float]]] = {}
        """By number of threads, seconds and pace of its steps."""

        self._seconds_of_trials = self._seconds_since_trials = 0.0
        self._patience = LEAST_SECONDS_BETWEEN_TRIALS
        self._begin_trials(self._numbers)

    def note(self, seconds: float, weight: float) -> None:
        """Count a step of `weight`, the samples' or tokens', that took so long with `num_threads`."""
        if len(self._numbers) == 1:
            return
        pace = seconds / weight
        if self._trials:
            if self.num_threads != self._best:
                self._seconds_of_trials += seconds
            self._trials[self.num_threads].append((seconds, pace))
            self._go_on()
            return
        self._recent.append(pace)
        self._seconds_since_trials += seconds
        if self._is_time_for_trials():
            self._begin_trials(self._near(self._best))

    def _is_time_for_trials(self) -> bool:
        if len(self._recent) < STEPS_TO_COMPARE or self._seconds_since_trials < self._patience:
            return False
        change = statistics.median(self._recent) / self._usual
        is_affordable = self._seconds_of_trials <= SHARE_OF_TRIALS * self._seconds_since_trials
        return is_affordable or max(change, 1 / change) > CHANGE_OF_PACE

    def _near(self, number: int) -> list[int]:
        place = self._numbers.index(number)
        return self._numbers[max(0, place - 1) : place + 2]

    def _begin_trials(self, numbers: Sequence[int]) -> None:
        # The best one so far comes first: the others are compared with what it reaches now.
        self._trials = {number: [] for number in sorted(numbers, key=lambda number: number != self._best)}
        self._seconds_of_trials = 0.0
        self.num_threads = next(iter(self._trials))

    def _go_on(self) -> None:
        steps = self._trials[self.num_threads]
        if not (_is_enough([seconds for seconds, _ in steps]) or self._is_clearly_slower(steps)):
            return
        untried = [number for number, steps in self._trials.items() if not steps]
        if untried:
            self.num_threads = untried[0]
            return
        paces = {
            number: statistics.median(pace for _, pace in steps[1:] or steps) for number, steps in self._trials.items()
        }
        fastest = min(paces, key=paces.__getitem__)
        further = [number for number in self._near(fastest) if number not in paces]
        if further:
            self._trials[further[0]] = []
            self.num_threads = further[0]
            return
        if paces[fastest] * GAIN_WORTH_A_CHANGE < paces[self._best]:
            self._best, self._patience = fastest, LEAST_SECONDS_BETWEEN_TRIALS
        else:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)
        self.num_threads, self._usual = self._best, paces[self._best]
        self._trials, self._seconds_since_trials = {}, 0.0
        self._recent.clear()

    def _is_clearly_slower(self, steps: Sequence[tuple[float, float]]) -> bool:
        best = self._trials.get(self._best) if self.num_threads != self._best else None
        if not best or len(steps) < 2:
            return False
        limit = CLEARLY_SLOWER * statistics.median(pace for _, pace in best[1:] or best)
        return all(pace > limit for _, pace in steps)


def _is_enough(seconds: Sequence[float]) -> bool:
    total = sum(seconds)
    return (
        len(seconds) >= STEPS_OF_A_TRIAL
        or (len(seconds) >= 2 and total >= SECONDS_OF_A_TRIAL)
        or total >= SECONDS_OF_A_LONG_STEP
    )
