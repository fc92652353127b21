"""The processes of a chaos run: starting, freezing and killing whole trainers, and finding orphans."""

import json
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hub_tools.atomic_files import write_text_whole
from hub_tools.processes.child_process import end_group, last_line
from hub_tools.processes.event_files import read_events
from pipelines.tools.chaos.chaotic_peer import (
    ChaoticPeerSettings,
    Control,
    control_file,
    events_file,
    settings_file,
)
from pipelines.tools.chaos.fork_server import ForkServer
from pipelines.tools.process_table import (
    group_members,
    is_running,
    memory_of,
    name_of,
    processes_with_variable,
    signal_processes,
)

MARKER_VARIABLE = "DALLE_COLLAB_CHAOS"
"""All processes of a chaos run inherit this variable, which identifies them when they have lost their parent."""

SECONDS_TO_DIE = 5.0
NEEDLESS = "torch_shm_manag"
"""What the system calls the process of a trainer that it can live without."""


class Trainer:
    """One trainer and its volunteer, who restarts it when it has died."""

    def __init__(self, settings: ChaoticPeerSettings, forks: ForkServer, environment: Mapping[str, str] = {}) -> None:
        self.settings, self._forks, self._environment = settings, forks, environment
        self.num_unexpected_exits = 0
        self.group = 0
        self._is_frozen, self._num_children_killed = False, 0

    @property
    def name(self) -> str:
        """Name of the trainer in files and figures."""
        return self.settings.name

    @property
    def folder(self) -> Path:
        """Folder of the trainer's files."""
        return Path(self.settings.folder)

    def start(self) -> int:
        """Start the trainer in its own process group; return the group."""
        path = settings_file(self.folder, self.name)
        path.write_text(json.dumps(asdict(self.settings)), encoding="utf-8")
        self._is_frozen = False
        self.group = self._forks.start(self.name, "pipelines.tools.chaos.chaotic_peer", [str(path)], self._environment)
        return self.group

    def memory_bytes(self) -> int:
        """Return the memory of all its processes, what they share counted in each: only its growth says anything."""
        return sum(map(memory_of, group_members(self.group)))

    def is_alive(self) -> bool:
        """Tell whether the trainer's main process is alive, frozen or not."""
        return self.group != 0 and is_running(self.group)

    def kill(self) -> list[int]:
        """Kill the whole group at once; return processes of it that survive."""
        if self.group == 0:
            return []
        end_group(self.group)
        return _after_some_time(lambda: group_members(self.group))

    def ends_without_a_child(self) -> bool:
        """Kill one of hivemind's processes, each time another one; tell whether the whole group then ends by itself."""
        guards, main = self._guards(), self.group
        children = [pid for pid in sorted(group_members(main)) if pid not in guards and name_of(pid) != NEEDLESS]
        children.remove(main)
        self._num_children_killed += 1
        signal_processes([children[self._num_children_killed % len(children)]] if children else [], signal.SIGKILL)
        return not _after_some_time(lambda: group_members(main))

    def freeze(self) -> None:
        """Freeze all processes of the trainer except the guard, which would end them if this program died meanwhile."""
        self._is_frozen = True
        self._signal_all_but_guard(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen trainer."""
        if self._is_frozen:
            self._is_frozen = False
            self._signal_all_but_guard(signal.SIGCONT)

    def control(self, control: Control) -> None:
        """Tell the trainer what to do, even if it is started later."""
        write_text_whole(control_file(self.folder, self.name), json.dumps(asdict(control)))

    def events(self) -> list[dict[str, Any]]:
        """Return the trainer's events so far, across restarts."""
        return read_events(events_file(self.folder, self.name))

    def last_words(self) -> str:
        """Return the last line logged by the trainer."""
        return last_line(self._forks.log(self.name))

    def last_sign_of_life(self) -> str:
        """Return the trainer's last event and last line, to find out why it is stuck."""
        events = self.events()[-1:]
        last = f"{events[0]['event']} {time.time() - events[0]['time']:.0f} s ago" if events else "no event"
        return f"{self.name}: {last}; {self.last_words()}"

    def _signal_all_but_guard(self, number: signal.Signals) -> None:
        signal_processes(set(group_members(self.group)) - self._guards(), number)

    def _guards(self) -> set[int]:
        return {event["guard"] for event in self.events() if event["event"] == "started"}


def left_behind(mark: str) -> list[int]:
    """Return the processes with this mark that are still alive after some time to exit."""
    return _after_some_time(lambda: processes_with_variable(MARKER_VARIABLE, mark))


def _after_some_time(find: Callable[[], list[int]]) -> list[int]:
    deadline = time.monotonic() + SECONDS_TO_DIE
    while (pids := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return pids


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
