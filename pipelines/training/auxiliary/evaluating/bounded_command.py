"""A command beside a peer, at the lowest priority: it cannot outlive the peer, nor a time limit, nor slow it down.

As a program, `bounded_command LIMIT_SECONDS PARENT COMMAND...`, this file is the keeper between the two: it starts the
command in a process group of its own, and kills that group when the parent dies (even by SIGKILL), when the time is
up, or when it is told to stop. Should the keeper itself be killed, the kernel ends the command.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pipelines.training.peer.process_group import die_with_parent, end_group

LOWEST_PRIORITY = 19
FIRST_TO_BE_KILLED = 1000
"""When memory runs out, the kernel ends this before the peer."""

SECONDS_TO_STOP = 5.0
LONGEST_LIMIT_SECONDS = 14 * 86_400.0
TOO_SLOW_EXIT_CODE = 124
LONGEST_LINE = 300
TAIL_BYTES = 4096
NOTHING_SAID = "it printed nothing"


class BoundedCommand:
    """Runs a command with a keeper. Use as a context manager: what still runs at its end is killed."""

    def __init__(
        self, command: Sequence[str], *, limit_seconds: float, environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        """`folder`: where the command starts; its whole output goes to `log`, which is replaced."""
        # Python would write what it has printed behind the error that ends it, which is then not the last line.
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        keeper = [sys.executable, "-m", __name__, str(limit_seconds), str(os.getpid()), *command]
        with log.open("wb") as output:
            self._keeper = subprocess.Popen(
                keeper, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def exit_code(self) -> int | None:
        """Return the command's exit code, `TOO_SLOW_EXIT_CODE` if its time was up; None while it runs."""
        return self._keeper.poll()

    def stop(self) -> None:
        """Kill the command, if it still runs."""
        self._keeper.terminate()
        try:
            self._keeper.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def last_line(self) -> str:
        """Return the last line of its output, shortened."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:LONGEST_LINE] if lines else NOTHING_SAID


def keep(command: Sequence[str], *, limit_seconds: float, parent: int) -> int:
    """Run a command to its end, if the parent and the time last so long; return its exit code."""
    watched = os.pidfd_open(parent)
    if os.getppid() != parent:  # it has died since it started this process, and its number may be another's
        return 1
    end = time.monotonic() + limit_seconds
    child = subprocess.Popen(command, process_group=0, preexec_fn=_die_at_once_with_parent)
    try:
        ended = _wait_for([watched, os.pidfd_open(child.pid)], end)
        if not ended:
            print(f"Its {limit_seconds:g} seconds were up.", file=sys.stderr)
            return TOO_SLOW_EXIT_CODE
        if watched in ended:
            return 1
        code = child.wait()
        return code if code >= 0 else 128 - code
    finally:
        end_group(child.pid)


def _wait_for(descriptors: Sequence[int], end: float) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [found for found, _ in poll.poll(1000 * max(0.0, end - time.monotonic()))]


def _die_at_once_with_parent() -> None:
    die_with_parent(signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Be the keeper of a command; see the module."""
    os.nice(LOWEST_PRIORITY)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_BE_KILLED), encoding="ascii")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    return keep(arguments[2:], limit_seconds=float(arguments[0]), parent=int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
