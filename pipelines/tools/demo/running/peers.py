"""A peer of the demo as a process that may die, freeze or leave, and what it has said since it was started."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hub_tools.processes.event_files import EventReader
from pipelines.tools.demo.running.programs import Program

MOST_STARTS = 4
"""Of one peer, while no epoch ends."""

SECONDS_OF_SILENCE = 20.0
"""After which it is looked whether a peer is frozen."""


class Peer:
    """A peer: started, listened to, and started again."""

    def __init__(self, name: str, log_name: str, events: Path, start: Callable[[], Program]) -> None:
        self.name, self.log_name = name, log_name
        self._events, self._start = events, start
        self._reader = EventReader(events)
        self.program: Program | None = None
        self.num_starts = 0
        """Since it has advanced from one epoch to another."""

        self.is_given_up = False

        self.epoch = -1
        """The newest that it has spoken of since it was started; -1: it has not spoken."""

        self.report: Mapping[str, Any] = {}
        """Its newest event since then."""

        self._heard_at = self._looked_at = 0.0

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or has not been started."""
        return None if self.program is None else self.program.exit_code

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.program is not None and self.program.exit_code is None

    @property
    def may_start(self) -> bool:
        """Whether it is worth another try."""
        return self.num_starts < MOST_STARTS

    def start(self, now: float) -> None:
        """Start it; what is left of its last life is killed before. `now`: seconds of any clock."""
        if self.program is not None:
            self.program.kill()
        self.num_starts, self.epoch, self.report, self._heard_at = self.num_starts + 1, -1, {}, now
        self._reader = EventReader(self._events)
        self.program = self._start()

    def hear(self, now: float) -> bool:
        """Read its new events; return whether it has advanced: joined the swarm, or come to another epoch."""
        before = self.epoch
        for event in self._reader.new():
            self._heard_at = now
            self.report = event
            self.epoch = max(self.epoch, epoch_of(event))
        if 0 <= before < self.epoch:
            self.num_starts = 0
        return self.epoch > before

    def has_failed(self, now: float) -> bool:
        """Whether it has ended, or says nothing and was stopped by a signal."""
        if self.program is None or self.program.exit_code is not None:
            return self.program is not None
        if now - max(self._heard_at, self._looked_at) < SECONDS_OF_SILENCE:
            return False
        self._looked_at = now
        return self.program.is_frozen


def epoch_of(event: Mapping[str, Any]) -> int:
    """Return the epoch that a peer's event shows it or its swarm to be in; -1 if it shows none."""
    if event.get("event") == "step":
        return int(event["epoch"]) + bool(event.get("ended_epoch"))
    return int(event.get("swarm_epoch", event.get("epoch", -1)))
