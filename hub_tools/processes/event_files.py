"""Files in which programs report their events as JSON lines."""

import contextlib
import json
from pathlib import Path
from typing import Any


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of an event file; one that was cut off by a full disk or a kill is none."""
    return _events_in(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else []


class EventReader:
    """Returns what programs append to an event file, call by call."""

    def __init__(self, path: Path) -> None:
        """What is there already is passed over; what its writer was killed in the middle of is ended."""
        self._path = path
        if path.exists() and path.stat().st_size:
            with path.open("rb+") as file:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
        self._position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Return the events that are complete and have not been returned before."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._position += len(complete + newline)
        return _events_in((complete + newline).decode(errors="replace"))


def _events_in(text: str) -> list[dict[str, Any]]:
    events = []
    for line in text.splitlines(keepends=True):
        with contextlib.suppress(ValueError):
            event = json.loads(line) if line.endswith("\n") else None
            events += [event] if isinstance(event, dict) else []
    return events
