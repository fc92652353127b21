"""How often the auxiliary peer may commit: the Hub refuses more than about 128 commits per hour to a repository."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from hub_tools.atomic_files import write_text_whole

WINDOW_SECONDS = 3600.0


def seconds_until_commit(times: Sequence[float], now: float, max_per_hour: int) -> float:
    """Return how long to wait until a commit keeps every hour within the limit; 0 if it may be made now."""
    recent = sorted(time for time in times if time > now - WINDOW_SECONDS)
    if len(recent) < max_per_hour:
        return 0.0
    return recent[len(recent) - max_per_hour] + WINDOW_SECONDS - now


class CommitBudget:
    """Counts this peer's commits in a file, so that a restart does not reset the hour."""

    def __init__(self, path: Path, max_per_hour: int) -> None:
        self._path, self._max_per_hour = path, max_per_hour
        self._times: list[float] = []
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._times = [float(time) for time in json.loads(path.read_text(encoding="utf-8"))]

    def seconds_until_commit(self, now: float, *, share: float = 1.0) -> float:
        """Return how long to wait; less important commits may use only `share` of the budget."""
        # A clock that was set back must not block commits for longer than an hour.
        times = [min(time, now) for time in self._times]
        return seconds_until_commit(times, now, max(1, int(self._max_per_hour * share)))

    def count(self, now: float) -> None:
        """Record a commit. Call it before the commit: one that fails half-way may still have been made."""
        self._times = [time for time in self._times if time > now - WINDOW_SECONDS] + [now]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text_whole(self._path, json.dumps(self._times))
