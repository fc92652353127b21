"""Programs of a demo, each with all that it starts: found by a variable that its processes inherit.

A peer is a command, its worker in a session of its own, a guard and hivemind's processes. One that is frozen, or has
lost its parent, hears no request, and no group holds them all; the variable does.
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hub_tools.processes.child_process import ChildProcess
from hub_tools.processes.process_group import die_with_parent
from pipelines.tools.process_table import is_frozen, processes_with_variable, signal_processes

VARIABLE = "DALLE_COLLAB_DEMO"
SECONDS_TO_STOP = 30.0
SECONDS_TO_DIE = 10.0
SECONDS_BETWEEN_LOOKS = 0.1
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A program that was started, and its whole family."""

    process: ChildProcess
    mark: str
    """What `VARIABLE` is in each of its processes, and in no others."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    @property
    def is_frozen(self) -> bool:
        """Whether some process of the family was stopped by a signal."""
        return any(map(is_frozen, processes_with_variable(VARIABLE, self.mark)))

    def kill(self) -> None:
        """Kill the whole family, and wait until it has gone."""
        kill_all(self.mark)
        self.process.wait()


def mark_of_all(folder: Path) -> str:
    """Return how the marks of all programs of the demo in a folder begin."""
    return f"{folder.resolve()}//"


def start_program(
    command: Sequence[str], folder: Path, name: str, environment: Mapping[str, str], **options: object
) -> Program:
    """Start a program of the demo in a folder; it is asked to stop when this process dies. `options` are Popen's."""
    mark = f"{mark_of_all(folder)}{name}-{os.getpid()}-{next(_numbers)}"
    process = ChildProcess(command, env={**environment, VARIABLE: mark}, preexec_fn=die_with_parent, **options)
    return Program(process=process, mark=mark)


def stop_all(programs: Sequence[Program], seconds: float = SECONDS_TO_STOP, *, asks: bool = True) -> list[Program]:
    """Ask all to stop at the same time, then kill what is left of them; return those that had not ended by themselves.

    A frozen one is not waited for. Without `asks` they are known to be ending.
    """
    for program in programs:
        if asks and program.exit_code is None:
            program.process.send_signal(signal.SIGTERM)
    late: list[Program] = list(programs)
    try:
        deadline = time.monotonic() + seconds
        while late := [program for program in programs if program.exit_code is None]:
            if time.monotonic() > deadline or all(program.is_frozen for program in late):
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:  # also for who does not want to wait: a second Ctrl-C
        for program in programs:
            program.kill()
    return late


def end_leftovers(folder: Path, seconds: float) -> int:
    """End what an interrupted demo in a folder has left running; return how many processes that were.

    They have been asked to stop when it died, and have this time to do so: an auxiliary peer writes its state.
    """
    mark = mark_of_all(folder)
    found = processes_with_variable(VARIABLE, mark, or_longer=True)
    deadline = time.monotonic() + seconds
    while left := processes_with_variable(VARIABLE, mark, or_longer=True):
        if time.monotonic() > deadline or all(map(is_frozen, left)):
            break
        time.sleep(SECONDS_BETWEEN_LOOKS)
    kill_all(mark, or_longer=True)
    return len(found)


@contextlib.contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Kill what is left of the demo in a folder when the block ends, however it does."""
    try:
        yield
    finally:
        kill_all(mark_of_all(folder), or_longer=True)


def kill_all(mark: str, *, or_longer: bool = False) -> None:
    """Kill all processes with a mark, also those that they start meanwhile."""
    deadline = time.monotonic() + SECONDS_TO_DIE
    while left := processes_with_variable(VARIABLE, mark, or_longer=or_longer):
        signal_processes(left, signal.SIGKILL)
        if time.monotonic() > deadline:  # such as one in the middle of a write to a disk that does not answer
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)
