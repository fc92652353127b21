"""Adaptive time-outs for rounds and for single attempts: learnt from recent rounds, within the run's limits."""

import math
import statistics
from collections import deque
from collections.abc import Sequence

from pipelines.core.averaging.group.matchmaking import retry_seconds

NUM_ROUNDS_REMEMBERED = 8
ROUNDS_NEEDED = 3
"""Until this many rounds are known, the run's own time-out applies."""

PATIENCE = 3.0
"""A round may take this many times the longest of the last ones, and one attempt this many times their median, or what
the links need."""

SHARE_OF_A_CHUNK, LEAST_SECONDS = 2 / 3, 2.0
"""An attempt times out before a silent sender does: its members can then all look for another group at once. It lasts
at least as long as the search for that group would, and 2 s: on a busy machine streams take a second to open."""

MOST_DOUBLINGS = 10
"""However many attempts have failed, the time for the next one is doubled no more often."""

SMALLEST_CHANGE = 0.25
"""A time-out is kept while the better one differs by less than this share: peers should agree roughly."""


def adapted_timeout(
    current: float, durations: Sequence[float], *, overhead: float, lowest: float, highest: float
) -> float:
    """Return the seconds after which a round times out, in [lowest, highest].

    `durations` are the seconds of the last all-reduces, failed ones too: a time-out that was too short grows by them.
    `overhead` is the matchmaking time. A dead peer costs one time-out: it should not be longer than needed.
    """
    if len(durations) < ROUNDS_NEEDED:
        return current
    wanted = min(highest, max(lowest, overhead + PATIENCE * max(durations)))
    at_a_bound = wanted in (lowest, highest)
    return wanted if at_a_bound or abs(wanted - current) > SMALLEST_CHANGE * current else current


class RoundTimes:
    """Remembers the last rounds' durations and derives the time-out from them."""

    def __init__(self, *, overhead: float, lowest: float, highest: float) -> None:
        self._overhead, self._lowest, self._highest = overhead, min(lowest, highest), highest
        self._durations: deque[float] = deque(maxlen=NUM_ROUNDS_REMEMBERED)
        self._num_rounds = 0
        self.timeout = highest

    def note(self, num_rounds: int, seconds: float) -> None:
        """Record the newest round; calls between rounds (`num_rounds` unchanged) have no effect."""
        if num_rounds == self._num_rounds:
            return
        self._num_rounds = num_rounds
        self._durations.append(seconds)
        self.timeout = adapted_timeout(
            self.timeout, self._durations, overhead=self._overhead, lowest=self._lowest, highest=self._highest
        )


class AttemptTimes:
    """How long one attempt at an all-reduce may last: a peer that freezes in the first is not in the second.

    Peers that look for a new group at once lose seconds; with the run's whole time-out they would lose the epoch. It is
    what the members' links need, which all of them compute alike, and no less than what was usual; so a slow newcomer
    is waited for once the others have seen what she delivers. Each further attempt has twice the time, for peers that
    were only slow. One long round among the last changes nothing. Without bounds (None) there is no time-out.
    """

    def __init__(self, *, lowest: float | None, highest: float | None) -> None:
        self._highest = math.inf if highest is None else highest
        self._lowest = self._highest if lowest is None else lowest
        self._durations: deque[float] = deque(maxlen=NUM_ROUNDS_REMEMBERED)
        self._num_failures = 0

    @property
    def highest(self) -> float:
        """The longest that any attempt may last; infinity: no limit."""
        return self._highest

    def seconds(self, needed: float | None = None) -> float | None:
        """Return the time for the next attempt, in which the group's links need so many seconds, if that is known."""
        known = [statistics.median(self._durations)] if self._durations else []
        usual = max([*known, *([] if needed is None else [needed])], default=math.inf)
        wanted = max(self._lowest, PATIENCE * usual) * 2.0 ** min(self._num_failures, MOST_DOUBLINGS)
        bounded = min(self._highest, wanted)
        return bounded if math.isfinite(bounded) else None

    def note_success(self, seconds: float, *, is_whole: bool = True) -> None:
        """Record an attempt that ended in time; `is_whole`: without another one before it, and with all members.

        Otherwise the next attempts keep their time: who was left out may have needed more.
        """
        self._durations.append(seconds)
        if is_whole:
            self._num_failures = 0

    def note_failure(self) -> None:
        """Record an attempt that timed out."""
        self._num_failures += 1


def attempt_times(round_seconds: float | None, chunk_seconds: float | None, matchmaking_seconds: float) -> AttemptTimes:
    """Return the times of an averager's attempts, given its time-outs for a round and for a silent sender."""
    chunk_seconds = chunk_seconds or round_seconds
    longest_search = max(LEAST_SECONDS, retry_seconds(matchmaking_seconds))
    lowest = chunk_seconds and min(SHARE_OF_A_CHUNK * chunk_seconds, longest_search)
    return AttemptTimes(lowest=lowest, highest=round_seconds)
