"""Keeps the process that reads the swarm running, and its last snapshot."""

import json
import logging
import queue
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.pages.dashboard.swarm import swarm_watch
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import SwarmSnapshot
from pipelines.tools.pages.line_program import LineProgram

logger = logging.getLogger(__name__)

SECONDS_TO_START = 180.0
SECONDS_OF_SILENCE = 20.0
"""A process that is silent for this long hangs, and is replaced."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0
WAITING = "Waiting for the run's settings from the Hub to find the swarm."
NO_ADDRESS = "The run has no entry address yet. Its organiser starts the auxiliary peer with: dalle-collab run assist"


@dataclass(frozen=True, kw_only=True)
class SwarmView:
    """What is known about the swarm."""

    snapshot: SwarmSnapshot | None = None
    """The newest snapshot, however old; None before the first one."""

    problem: str = WAITING
    """Why there is no fresh snapshot; empty if there is."""


class SwarmReader:
    """Reads the swarm in the background. Use as a context manager.

    `read_run` returns the run's newest settings, None while they are unknown; `on_look` is called with every snapshot.
    """

    def __init__(
        self,
        repository: str,
        read_run: Callable[[], TrainingRun | None],
        on_look: Callable[[SwarmSnapshot, TrainingRun], None],
    ) -> None:
        self._repository, self._read_run, self._on_look = repository, read_run, on_look
        self._view, self._stop = SwarmView(), threading.Event()
        self._program: LineProgram | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True, name="swarm reader")

    def __enter__(self) -> "SwarmReader":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._end()
        self._thread.join(10)

    @property
    def view(self) -> SwarmView:
        """The current view."""
        return self._view

    def _keep(self) -> None:
        # One identity for all programs: each new one would need a new proof for the run's admission service.
        with tempfile.TemporaryDirectory(prefix="dalle-collab-watch-") as folder:
            self._keep_watching(Path(folder) / "identity.key")

    def _keep_watching(self, identity_file: Path) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            run = self._read_run()
            if run is None or (run.wire == "p2p" and not run.entry_addresses):
                self._say(WAITING if run is None else f"{NO_ADDRESS} {self._repository}")
                self._stop.wait(0.5)
                continue
            try:
                if self._watch(run, identity_file):
                    pause = FIRST_PAUSE_SECONDS
            except Exception:
                # Whatever comes from the swarm, the page continues with what it has.
                logger.exception("The swarm cannot be read.")
                self._say("The swarm's answers cannot be understood; retrying.")
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _watch(self, run: TrainingRun, identity_file: Path) -> bool:
        """Run one process until it ends, hangs, or the run has a new swarm; return whether it saw anything."""
        lines = self._start(run, identity_file)
        limit, has_seen = SECONDS_TO_START, False
        try:
            while not self._stop.is_set():
                line = lines.get(timeout=limit)
                if line is None:
                    self._say("The node that reads the swarm has exited; restarting it.")
                    return has_seen
                values = json.loads(line)
                if "error" in values:
                    self._say(str(values["error"]))
                    return has_seen
                snapshot = SwarmSnapshot.from_values(values)
                self._on_look(snapshot, run)
                self._view = SwarmView(snapshot=snapshot, problem="")
                limit, has_seen = SECONDS_OF_SILENCE, True
                if (newest := self._read_run()) is not None and newest.swarm_id != run.swarm_id:
                    self._say("The run has started a new generation: joining its swarm.")
                    return has_seen
        except queue.Empty:
            self._say(f"The swarm has not answered for {limit:.0f} s; retrying.")
        finally:
            self._end()
        return has_seen

    def _start(self, run: TrainingRun, identity_file: Path) -> "queue.Queue[str | None]":
        way = "Reading the run's rounds" if run.wire == "hub" else "Joining the swarm as a client"
        self._say(f"{way}{'.' if self._view.snapshot is None else ', again.'}")
        lines: queue.Queue[str | None] = queue.Queue()
        self._program = LineProgram(swarm_watch.__name__, lines.put)
        values = dict(repository=self._repository, run=json.loads(run.to_json()), identity_file=str(identity_file))
        self._program.send(values)
        return lines

    def _end(self) -> None:
        if self._program is not None:
            self._program.end()

    def _say(self, problem: str) -> None:
        self._view = SwarmView(snapshot=self._view.snapshot, problem=problem)
