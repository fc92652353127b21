"""The processes that serve the chaos run's model and use it, and the faults of them."""

import signal
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hub_tools.processes.child_process import end_group
from hub_tools.processes.process_group import WORKER_VARIABLE
from pipelines.tools.chaos.chaos_processes import read_events
from pipelines.tools.chaos.chaotic_peer import events_file
from pipelines.tools.chaos.faults.fault_script import ServingFault
from pipelines.tools.chaos.fork_server import ForkServer
from pipelines.tools.process_table import signal_processes

HOST = "/ip4/127.0.0.1/tcp/0"
DRAWING = ("draws-0", "draws-1", "draws-2")
COMPUTING = {"layers-0": "0:2", "layers-1": "2:3", "layers-2": "2:3"}
"""Block servers and what they serve of three layers: all but the first one are gone together."""

CODES_PER_SECOND = 60
FALSE, CLIENTS = "draws-falsely", {"drawings": "customer-of-drawings", "layers": "customer-of-layers"}


class ServingScenario:
    """Starts what a script's faults need: drawing servers or block servers, and who uses them."""

    def __init__(
        self, folder: Path, repository: str, forks: ForkServer, environment: Mapping[str, str], faults: Collection[str]
    ) -> None:
        self._folder, self._repository, self._forks, self._environment = folder, repository, forks, environment
        self._groups: dict[str, int] = {}
        self._num_struck: Counter[str] = Counter()
        self._named = dict(
            drawings=bool({ServingFault.SERVER, ServingFault.FALSE_SERVER} & set(faults)),
            layers=ServingFault.HOLE in faults,
        )

    def start(self) -> None:
        """Start all servers and their customers."""
        for name in (*(DRAWING if self._named["drawings"] else ()), *(COMPUTING if self._named["layers"] else ())):
            self._serve(name)
        for what, name in CLIENTS.items():
            if self._named[what]:
                self._start(
                    name, "pipelines.tools.chaos.serving.client", [self._repository, str(self._log(name)), what]
                )

    def is_in_use(self) -> bool:
        """Whether every customer has got something."""
        return all(
            any(event["event"] in ("drawn", "computed") for event in self.events(CLIENTS[what]))
            for what, is_needed in self._named.items()
            if is_needed
        )

    def strike(self, fault: str, *, is_on: bool) -> None:
        """Begin or end a fault."""
        self._num_struck[fault] += not is_on
        {
            ServingFault.SERVER: self._strike_server,
            ServingFault.HOLE: self._strike_span,
            ServingFault.FALSE_SERVER: self._lie,
        }[ServingFault(fault)](is_on)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what a process has written so far."""
        return read_events(self._log(name))

    def figures(self) -> dict[str, Any]:
        """Return what the customers have seen; see `chaos_report.ServingFigures`."""
        drawings, layers = (self.events(CLIENTS[what]) for what in ("drawings", "layers"))
        drawn = [event for event in drawings if event["event"] == "drawn"]
        computed = [event for event in layers if event["event"] == "computed"]
        liars = {event["peer"] for event in self.events(FALSE) if event["event"] == "serving"}
        named = {server for event in drawn for server in event["named"]}
        return dict(
            num_drawn=len(drawn),
            num_drawn_otherwise=sum(not event["is_equal"] for event in drawn),
            num_candidates_lost=sum(event["num_lost"] for event in drawn),
            num_computed=len(computed),
            num_computed_otherwise=sum(not event["is_equal"] for event in computed),
            num_holes=self._num_struck[ServingFault.HOLE],
            num_times_holes_named=sum(event["event"] == "hole" for event in layers),
            has_computed_after_holes=_is_followed([event["event"] for event in layers], "hole", "computed"),
            num_false_servers=len(liars),
            num_false_servers_named=len(liars & named),
            num_honest_servers_named=len(named - liars),
        )

    def close(self) -> None:
        """Kill all processes."""
        for group in self._groups.values():
            end_group(group)

    def _strike_server(self, is_on: bool) -> None:
        """Kill a drawing server, or stop it each second time; the next one each time."""
        number = self._num_struck[ServingFault.SERVER] - (not is_on)
        victim, is_stop = DRAWING[number % len(DRAWING)], number % 2 == 1
        if is_on and is_stop:
            self._signal(victim, signal.SIGSTOP)
        elif is_on:
            end_group(self._groups[victim])
        else:
            self._signal(victim, signal.SIGCONT) if is_stop else self._serve(victim)

    def _strike_span(self, is_on: bool) -> None:
        for name in list(COMPUTING)[1:]:
            end_group(self._groups[name]) if is_on else self._serve(name)

    def _lie(self, is_on: bool) -> None:
        if is_on:
            self._start(
                FALSE, "pipelines.tools.chaos.serving.false_server", [self._repository, str(self._log(FALSE)), HOST]
            )
        else:
            end_group(self._groups.pop(FALSE))

    def _serve(self, name: str) -> None:
        options = ["--blocks", COMPUTING[name]] if name in COMPUTING else ["--max-codes-per-second", CODES_PER_SECOND]
        words = (
            "serve", self._repository, "--host", HOST, "--cpu-threads", 1, "--memory", 0.2, "--name", name,
            "--checkpoint-seconds", 86_400, "--startup-timeout", 240, "--events", self._log(name), *options,
        )  # fmt: skip
        self._start(name, "pipelines.command_line.main", [str(word) for word in words], {WORKER_VARIABLE: "1"})

    def _start(self, name: str, program: str, arguments: list[str], more: Mapping[str, str] = {}) -> None:
        self._groups[name] = self._forks.start(name, program, arguments, {**self._environment, **more})

    def _signal(self, name: str, number: signal.Signals) -> None:
        """Signal the main process alone: its guard would end the others if this program died meanwhile."""
        signal_processes([self._groups[name]], number)

    def _log(self, name: str) -> Path:
        return events_file(self._folder, name)


def _is_followed(events: list[str], first: str, second: str) -> bool:
    return first in events and second in events[events.index(first) :]
