"""A command beside a peer, at the lowest priority: it cannot outlive the peer, nor a time limit, nor slow it down.

As a program, `bounded_command LIMIT_SECONDS PARENT COMMAND...`, this file becomes the command, with a guard that kills
its group when the parent dies (even by SIGKILL), when the time is up, or when the command has ended. Should the guard
itself be killed, the kernel ends the command with the parent.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hub_tools.processes.child_process import SOURCE_ROOT, ChildProcess, last_line
from hub_tools.processes.process_group import die_with_parent, guard_process_group

LOWEST_PRIORITY = 19
FIRST_TO_BE_KILLED = 1000
"""When memory runs out, the kernel ends this before the peer."""

LONGEST_LIMIT_SECONDS = 14 * 86_400.0
TOO_SLOW_EXIT_CODE = 124


class BoundedCommand:
    """Runs a command with a guard. Use as a context manager: what still runs at its end is killed."""

    def __init__(
        self, command: Sequence[str], *, limit_seconds: float, environment: Mapping[str, str], log: Path
    ) -> None:
        """It starts in the folder that holds the packages; its whole output goes to `log`, which is replaced."""
        # Python would write what it has printed behind the error that ends it, which is then not the last line.
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        program = [sys.executable, "-m", __name__, str(limit_seconds), str(os.getpid()), *command]
        with log.open("wb") as output:
            self._process = ChildProcess(program, stdout=output, stderr=output, cwd=SOURCE_ROOT, env=environment)
        self._end = time.monotonic() + limit_seconds
        self._log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def exit_code(self) -> int | None:
        """Return the command's exit code, `TOO_SLOW_EXIT_CODE` if its time was up; None while it runs."""
        code = self._process.poll()
        if code == -signal.SIGKILL and time.monotonic() >= self._end:
            return TOO_SLOW_EXIT_CODE
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Kill the command, if it still runs, and all that it has started."""
        self._process.end()

    def last_line(self) -> str:
        """Return the last line of its output, shortened."""
        return last_line(self._log)


def main(limit_seconds: str, parent: str, *command: str) -> None:
    """Become the command; see the module."""
    os.nice(LOWEST_PRIORITY)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_BE_KILLED), encoding="ascii")
    die_with_parent(signal.SIGKILL)
    guard_process_group(float(limit_seconds))
    if os.getppid() == int(parent):  # else it has died before it was watched: so does this, and the guard
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
