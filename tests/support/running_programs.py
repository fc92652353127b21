"""Waiting for programs that tests have started, and programs that say one line when they are ready."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any, TypeVar

from hub_tools.processes.child_process import ChildProcess

Found = TypeVar("Found")


def wait_for(
    look: Callable[[], Found], what: str, seconds: float = 60, *, process: Any = None, log: Path | None = None
) -> Found:
    """Return what `look` finds, as soon as it finds something.

    Fails with the end of the log if the time is over, or a process that is given, a `Popen` or a `ForkedProcess`, ends.
    """
    deadline = time.monotonic() + seconds
    while True:
        code = None if process is None else process.poll()
        if found := look():  # also what it did last
            return found
        ended = f"within {seconds} s there was not" if code is None else f"ended with {code} before"
        said = "" if log is None or not log.exists() else end_of(log)
        assert code is None and time.monotonic() < deadline, f"{ended} {what}: {said}"
        time.sleep(0.05)


def end_of(log: Path) -> str:
    """Return the end of what a program has printed."""
    return log.read_text(encoding="utf-8")[-3000:]


@contextlib.contextmanager
def ready_program(path: str, *arguments: object, log: Path, seconds: float) -> Iterator[Any]:
    """Run a file that says one line of JSON when it is ready, and ends with its input; yield what it said."""
    command = [sys.executable, path, *map(str, arguments)]
    with log.open("w") as errors, ChildProcess(command, stdin=PIPE, stdout=PIPE, stderr=errors) as process:
        line = process.stdout.readline()
        assert line, log.read_text()
        try:
            yield json.loads(line)
        finally:
            process.stdin.close()
            process.wait(seconds)
