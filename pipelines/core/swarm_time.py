"""The swarm's time: a clock that is moved while a peer runs does not move it.

hivemind asks the machine's clock. If that jumps by hours, all that the others have said has expired, or will not for
hours; what this peer says is refused, or has expired; and loops that wait until a time wait for hours.
"""

import mmap
import time
from collections.abc import Callable


class SwarmTime:
    """Seconds since 1970: the machine's clock at the start, and what a clock that nobody sets has counted since.

    A fork of this process shares it. That clock also counts while the machine sleeps.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall, self._steady = wall, steady
        self._offset = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        self.follow()

    def __call__(self) -> float:
        """Return the swarm's time."""
        return self._steady() + self._offset[0]

    @property
    def ahead(self) -> float:
        """By how many seconds the machine's clock is ahead of the swarm's time: it was moved by so many."""
        return self._wall() - self()

    def follow(self) -> None:
        """Take the machine's clock for the swarm's time again."""
        self._offset[0] = self._wall() - self._steady()


def in_words(seconds: float) -> str:
    """Return a duration without its sign, in the unit that reads best."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * length:
            return f"{abs(seconds) / length:.1f} {unit}"
    return f"{abs(seconds):.1f} s"


def _seconds_since_the_start() -> float:
    """Return what counts while the machine sleeps, too; elsewhere than on Linux the nearest that there is."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


SWARM_TIME = SwarmTime(lambda: time.time(), _seconds_since_the_start)
"""Of this process and its forks, within `swarm.node.open_dht`."""
