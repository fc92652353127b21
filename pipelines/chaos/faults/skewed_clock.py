"""A clock that can be put wrong while it runs, in the place of `time.time`."""

import multiprocessing
import time


class SkewedClock:
    """`time.time` of this process and of all that it forks, wrong by as many seconds as wanted.

    It has to be installed before hivemind is imported, which keeps `time.time` under names of its own.
    """

    def __init__(self) -> None:
        self._real_time, self._skew = time.time, None

    def install(self) -> None:
        """Put this clock in the place of `time.time`; it is right until `own` and `skew` are called."""
        time.time = lambda: self._real_time() + (self._skew.value if self._skew is not None else 0.0)

    def own(self) -> None:
        """Make the clock of this process and of its future children independent of its parent's."""
        self._skew = multiprocessing.get_context("fork").Value("d", 0.0)

    def true_time(self) -> float:
        """Return what a right clock says."""
        return self._real_time()

    def skew(self, seconds: float) -> None:
        """Put the clock wrong, in all processes that share it."""
        self._skew.value = seconds


CLOCK = SkewedClock()
"""The clock of this process; whoever forks trainers installs it."""
