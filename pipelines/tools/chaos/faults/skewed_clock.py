"""A replacement for `time.time` that can be skewed while it runs."""

import multiprocessing
import time


class SkewedClock:
    """`time.time` of this process and of its forks, off by a given number of seconds.

    It must be installed before hivemind is imported, which stores `time.time` under its own names.
    """

    def __init__(self) -> None:
        self._real_time, self._skew = time.time, None

    def install(self) -> None:
        """Replace `time.time` with this clock; it is correct until `own` and `skew` are called."""
        time.time = lambda: self._real_time() + (self._skew.value if self._skew is not None else 0.0)

    def own(self) -> None:
        """Make the clock of this process and of its future children independent of its parent's."""
        self._skew = multiprocessing.get_context("fork").Value("d", 0.0)

    def true_time(self) -> float:
        """Return the true time."""
        return self._real_time()

    def skew(self, seconds: float) -> None:
        """Skew the clock in all processes that share it."""
        self._skew.value = seconds


CLOCK = SkewedClock()
"""The clock of this process; installed by whatever forks trainers."""
