"""JSON lines in which a command reports its events to programs, such as the pages that start it."""

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.peer.reports import StepReport

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_EQUAL_REPORTS = 10.0


class EventFile:
    """Appends one JSON object per line to a file, which may be a pipe; without a path it does nothing.

    What cannot be written, because the disk is full or nobody reads the pipe, is lost: training goes on.
    """

    def __init__(
        self, path: Path | None, *, step_seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._step_seconds, self._clock = path, step_seconds, clock
        self._last_step = self._last_report_time = -math.inf
        self._last_report: object = None
        self._is_damaged = False
        """Whether the last line may lack its end."""

    def write(self, values: Mapping[str, object]) -> None:
        """Append the values with the current time."""
        if self._path is None:
            return
        line = json.dumps(dict(values, time=time.time())) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" + line if self._is_damaged else line)
        except OSError as error:
            if not self._is_damaged:
                logger.warning("Events cannot be written to %s (%s); they are lost.", self._path, error)
            self._is_damaged = True
        else:
            self._is_damaged = False

    def write_report(self, report: "DataclassInstance") -> None:
        """Append the fields of a dataclass; if it equals the last one only now and then, so that files stay small."""
        now = self._clock()
        if report == self._last_report and now - self._last_report_time < SECONDS_BETWEEN_EQUAL_REPORTS:
            return
        self._last_report, self._last_report_time = report, now
        self.write(dataclasses.asdict(report))

    def happened(self, event: str, /, **values: object) -> None:
        """Append an event, under the key `event`."""
        self.write(dict(event=event, **values))

    def step(self, report: StepReport) -> None:
        """Append a trainer's report if it ends an epoch, or if `step_seconds` are set and have passed."""
        is_due = self._step_seconds is not None and self._clock() - self._last_step >= self._step_seconds
        if report.ended_epoch or is_due:
            self._last_step = self._clock()
            self.happened("step", **dataclasses.asdict(report))
