"""JSON lines in which a command reports its events to programs, such as the pages that start it."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class EventFile:
    """Appends one JSON object per line to a file, which may be a pipe; without a path it does nothing."""

    def __init__(
        self, path: Path | None, *, step_seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._step_seconds, self._clock = path, step_seconds, clock
        self._last_step = -math.inf

    def write(self, values: Mapping[str, Any]) -> None:
        """Append the values with the current time."""
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(values, time=time.time())) + "\n")

    def write_report(self, report: Any) -> None:
        """Append the fields of a dataclass."""
        self.write(dataclasses.asdict(report))

    def happened(self, event: str, /, **values: Any) -> None:
        """Append an event, under the key `event`."""
        self.write(dict(event=event, **values))

    def step(self, report: Any) -> None:
        """Append a trainer's report if it ends an epoch, or if `step_seconds` are set and have passed."""
        is_due = self._step_seconds is not None and self._clock() - self._last_step >= self._step_seconds
        if report.ended_epoch or is_due:
            self._last_step = self._clock()
            self.happened("step", **dataclasses.asdict(report))
