"""A program beside this one, which can be ended with all that it has started."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SOURCE_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages: of a bundle, a checkout or an installation."""

MOST_BYTES_OF_A_LINE = 4096
MOST_CHARACTERS = 300
"""Of a program's last line that is told; a traceback in one line has thousands, and is in the log."""


class ChildProcess(subprocess.Popen[str]):
    """A program that leads a session of its own: no Ctrl-C reaches it. It ends with a `with` block, or by `end`.

    One that must not outlive a parent that is killed sees to that itself, such as by `guard_process_group`.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """`options` are Popen's; as a default it has no input, and its pipes carry text."""
        super().__init__(command, **{"stdin": subprocess.DEVNULL, "text": True, "start_new_session": True} | options)
        self._has_group = True

    def __exit__(self, *exception: object) -> None:
        self.end()
        with contextlib.suppress(BrokenPipeError):  # what it was sent last, it has not read
            super().__exit__(None, None, None)

    def send(self, values: Mapping[str, object]) -> None:
        """Write a line of JSON to its input. Raises OSError or ValueError if it has ended."""
        assert self.stdin is not None, "it is a pipe"
        self.stdin.write(json.dumps(values) + "\n")
        self.stdin.flush()

    def end(self, seconds: float = 0.0) -> int:
        """Ask it to stop and wait so long, if at all; kill what is left of its group; return its exit code.

        Not in a signal handler, which may have interrupted a `wait`: `end_group` does the killing there.
        """
        if seconds:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(seconds)
        if self._has_group:  # afterwards, the system may give its number to another
            end_group(self.pid)
        code = self.wait()
        self._has_group = False
        return code


def end_group(leader: int) -> None:
    """Kill what is left of the process group that this process leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def last_line(log: Path, since: int = 0) -> str:
    """Return the last line that a program logged behind the first bytes."""
    otherwise = "it printed nothing"
    if not log.exists():
        return otherwise
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - MOST_BYTES_OF_A_LINE))
        lines = file.read().decode(errors="replace").strip().splitlines()
    line = lines[-1] if lines else otherwise
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 4]} ..."
