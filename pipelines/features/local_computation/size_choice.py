"""Which micro-batch a machine computes: measured before training starts, and again when the pace changes.

A machine is busy in spells. Sizes are therefore measured in turns, several times, and the least time of each counts: a
spell hits all alike. Pure: nothing here knows a clock, a model or a device.
"""

import math
import statistics
from collections import deque

SHARE_OF_THE_BEST_RATE = 0.95
"""The smallest micro-batch that reaches this share is chosen: larger ones cost memory and make counts coarser."""

GAIN_OF_TWO_DOUBLINGS = 1.04
"""Least gain for which sizes are doubled again; one doubling alone may lie in the noise."""

SECONDS_OF_A_LONG_TRIAL = 4.0
"""If one micro-batch takes longer than this, larger ones would only make an epoch's end less exact."""

TURNS, MOST_TURNS, SECONDS_OF_TURNS = 3, 10, 20.0
"""How often each size is measured, and one that seems slower than half of it; once only, after so many seconds."""

STEADY = 1.1
"""Where two turns differ by no more, there is no third one."""

LESS_THAN_HALF = 0.97
"""Two small micro-batches in place of a large one take no longer: a size whose rate is below this share of the rate of
its half was measured in a busy moment."""

MICRO_BATCHES_OF_TRIALS = 15
"""What later trials take: half, once and twice the size three times are 10, and some are measured again."""

GAIN_WORTH_A_CHANGE = 1.08
STEPS_TO_COMPARE = 5
CHANGE_OF_PACE = 1.25
"""Steps whose samples take so many times as long, or as short, mean that another program has started or ended."""

MOST_OF_TRIALS, LEAST_OF_TRIALS = 0.1, 0.02
"""Share of the time that measuring may take: the first while a choice is new, half as much after each time that changed
nothing, down to the second, and twice as much, up to the first, where the pace has changed. It never ends, as a small
micro-batch does not notice all that a large one would."""


class SizeChoice:
    """The samples of a micro-batch, a power of two or half as much again. Sizes are measured as `next_trial` asks.

    Sizes are doubled while samples get cheaper; when memory runs out, the size half-way is tried. Later the neighbours
    of the chosen size are measured again, and theirs if they are faster.
    """

    def __init__(self, largest: int, size: int | None = None) -> None:
        """`size`: the chosen one; None: it is 1 until the first trials are over."""
        self.size = size or 1
        self._largest, self._is_first = largest, size is None
        self._seconds: dict[int, list[float]] = {}
        """What each size has taken, in these turns."""

        self._waiting: list[int] = []
        self._too_large = math.inf
        self._recent: deque[float] = deque(maxlen=STEPS_TO_COMPARE)
        self._usual = math.nan
        """Seconds of a sample in the first steps after the last trials."""

        self._seconds_of_trials = self._seconds_of_steps = 0.0
        self._most_seconds = SECONDS_OF_TURNS
        """After so many seconds of trials nothing is measured again."""

        self._share = MOST_OF_TRIALS
        self._begin([1] if self._is_first else [])

    def next_trial(self) -> int | None:
        """Return the size to measure now; None: none is due."""
        if not self._waiting and self._is_time_for_trials():
            self._begin(sorted({max(1, self.size // 2), self.size, min(2 * self.size, self._largest)}))
        return self._waiting[0] if self._waiting else None

    def note_trial(self, seconds: float | None) -> None:
        """Note what the size that was asked for took; None: memory does not suffice with a margin."""
        size = self._waiting.pop(0)
        if seconds is None:
            self._note_too_large(size)
        else:
            self._seconds.setdefault(size, []).append(seconds)
            self._seconds_of_trials += seconds
        if not self._waiting:
            self._go_on()

    def note_step(self, seconds: float, num_samples: int) -> None:
        """Note a step of training."""
        self._seconds_of_steps += seconds
        self._recent.append(seconds / num_samples)
        if math.isnan(self._usual) and len(self._recent) == STEPS_TO_COMPARE:
            self._usual = statistics.median(self._recent)

    def _is_time_for_trials(self) -> bool:
        if self._largest == 1 or len(self._recent) < STEPS_TO_COMPARE:
            return False
        pace = statistics.median(self._recent)
        has_changed = not self._usual <= CHANGE_OF_PACE * pace <= CHANGE_OF_PACE**2 * self._usual
        share = min(MOST_OF_TRIALS, 2 * self._share) if has_changed else self._share
        self._most_seconds = min(SECONDS_OF_TURNS, MICRO_BATCHES_OF_TRIALS * self.size * pace)
        return self._most_seconds <= share * self._seconds_of_steps

    def _begin(self, sizes: list[int]) -> None:
        self._seconds, self._waiting, self._too_large = {}, sizes, math.inf
        self._seconds_of_trials = 0.0

    def _note_too_large(self, size: int) -> None:
        self._too_large = min(size, self._too_large)
        self._waiting = []
        half_way = size // 4 * 3
        if size // 2 in self._seconds and half_way > size // 2 and half_way not in self._seconds:
            self._waiting = [half_way]

    def _go_on(self) -> None:
        """Measure again what is in doubt, add a size that may be better, begin another turn, or choose."""
        is_time_left = self._seconds_of_trials < self._most_seconds
        doubtful = [size for size in self._seconds if self._is_doubtful(size)] if is_time_left else []
        if doubtful:
            # After others, each time another one, so that it does not meet the same spell of regular work again.
            others = {max(1, size >> 1 + len(self._seconds[size]) % 3) for size in doubtful}
            self._waiting = sorted({*doubtful, *others})
        elif (further := self._further()) is not None:
            self._waiting = [further]
        elif is_time_left and not self._is_settled():
            self._waiting = sorted(self._seconds)
        else:
            self._choose()

    def _is_doubtful(self, size: int) -> bool:
        rates, half = self._rates(), size // 2
        is_slower = half in rates and rates[size] < LESS_THAN_HALF * rates[half]
        return is_slower and len(self._seconds[size]) < MOST_TURNS

    def _is_settled(self) -> bool:
        num_turns = min(map(len, self._seconds.values()), default=TURNS)
        is_steady = all(max(seconds) <= STEADY * min(seconds) for seconds in self._seconds.values())
        return num_turns >= (2 if is_steady else TURNS)

    def _further(self) -> int | None:
        if not self._seconds:
            return None
        rates, top, bottom = self._rates(), max(self._seconds), min(self._seconds)
        pays = top // 4 not in rates or rates[top] >= GAIN_OF_TWO_DOUBLINGS * rates[top // 4]
        fits = 2 * top <= self._largest and 2 * top < self._too_large
        is_wanted = self._is_first or self._best() == top  # later only the neighbours are, unless they are better
        if pays and fits and is_wanted and min(self._seconds[top]) < SECONDS_OF_A_LONG_TRIAL:
            return 2 * top
        return bottom // 2 if 1 < bottom < 2 * self._too_large and self._best() == bottom else None

    def _rates(self) -> dict[int, float]:
        return {size: size / min(seconds) for size, seconds in self._seconds.items()}

    def _best(self) -> int:
        rates = self._rates()
        return min(size for size, rate in rates.items() if rate >= SHARE_OF_THE_BEST_RATE * max(rates.values()))

    def _choose(self) -> None:
        rates = self._rates()
        # Where the chosen size has no rate, memory is short at the moment, which says nothing.
        is_worth_it = self.size in rates and rates[self._best()] > GAIN_WORTH_A_CHANGE * rates[self.size]
        if rates and (self._is_first or is_worth_it):
            self.size, self._share = self._best(), MOST_OF_TRIALS
        else:
            self._share = max(LEAST_OF_TRIALS, self._share / 2)
        self._is_first, self._seconds_of_steps, self._usual = False, 0.0, math.nan
        self._recent.clear()
