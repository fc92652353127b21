"""How long what does not advance is waited for: by the machine's own pace, never by a fixed total."""

from collections import deque

LEAST_SECONDS = 300.0
TIMES_THE_LONGEST_WAIT = 4.0
NUM_WAITS = 50
"""The longest of so many is what the machine takes at present."""


class StallTimeout:
    """Is over when nothing has advanced for minutes, and for several times as long as it has taken lately."""

    def __init__(self, now: float) -> None:
        """`now`: seconds of any clock."""
        self._advanced_at = now
        self._waits: deque[float] = deque(maxlen=NUM_WAITS)

    def advanced(self, now: float) -> None:
        """Note that something has advanced."""
        self._waits.append(now - self._advanced_at)
        self._advanced_at = now

    def begin_anew(self, now: float) -> None:
        """Wait from now on."""
        self._advanced_at = now

    def seconds_waited(self, now: float) -> float:
        """Return for how long nothing has advanced."""
        return now - self._advanced_at

    @property
    def limit_seconds(self) -> float:
        """How long it is waited."""
        return max(LEAST_SECONDS, TIMES_THE_LONGEST_WAIT * max(self._waits, default=0.0))

    def is_over(self, now: float) -> bool:
        """Tell whether it is of no use to wait longer."""
        return self.seconds_waited(now) > self.limit_seconds
