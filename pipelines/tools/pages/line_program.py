"""A module of ours as a program of its own beside a page, which speaks lines of JSON.

hivemind forks and must not do so in a process that serves pages; the page survives whatever happens in the program. The
program calls `guard_process_group` first, so that it and its children end with the page.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

from hub_tools.processes.child_process import SOURCE_ROOT, ChildProcess


class LineProgram(ChildProcess):
    """Runs from now on until `end`, or until it ends by itself."""

    def __init__(self, module: str, on_line: Callable[[str | None], None]) -> None:
        """`on_line` is called in a thread with each line that the program prints, and with None after the last one."""
        super().__init__(
            [sys.executable, "-m", module],
            cwd=SOURCE_ROOT,
            env={**os.environ, "HIVEMIND_LOGLEVEL": os.environ.get("HIVEMIND_LOGLEVEL", "CRITICAL")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._read, args=(on_line,), daemon=True, name=f"lines of {module}").start()

    def send(self, values: Mapping[str, object]) -> None:
        """Write a line to the program; nothing happens if it has ended."""
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, at either end
            super().send(values)

    def _read(self, on_line: Callable[[str | None], None]) -> None:
        assert self.stdout is not None, "it is a pipe"
        with self.stdout:
            for line in self.stdout:
                on_line(line)
        on_line(None)
