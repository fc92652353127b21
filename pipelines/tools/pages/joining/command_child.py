"""A `dalle-collab` command as a child of a page or a notebook: its events, its output, and its end."""

import json
import logging
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO

from hub_tools.printing.printable import printable
from hub_tools.processes.process_group import VOLUNTEERS_PROGRAM, start_worker

logger = logging.getLogger(__name__)

LONGEST_LINE = 500
SECONDS_FOR_LAST_WORDS = 5.0
NOT_FOR_PEOPLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PLAIN_OUTPUT = {"COLUMNS": "200", "NO_COLOR": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONUNBUFFERED": "1"}


class CommandChild:
    """A command in its own process group, which ends with this process, however that ends.

    The Hub token goes into the environment of the child and nowhere else; it is cut out of what the child prints.
    `on_event`, `on_line` and, after all else, `on_end` (with the exit code) are called from threads.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        token: str | None,
        *,
        on_event: Callable[[dict[str, object]], None],
        on_line: Callable[[str], None],
        on_end: Callable[[int], None],
    ) -> None:
        self._token = token
        self._on_event, self._on_line, self._on_end = on_event, on_line, on_end
        self.ended = threading.Event()
        """Set when the command and all its descendants have exited."""

        events, write_end = os.pipe()
        try:
            self._process = start_worker(
                [*arguments, "--events", f"/dev/fd/{write_end}"],
                self._environment(),
                program=VOLUNTEERS_PROGRAM,
                pass_fds=(write_end,),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=False,
            )
        except BaseException:
            os.close(events)
            raise
        finally:
            os.close(write_end)
        self.pid = self._process.pid
        self._readers = [
            threading.Thread(target=self._read, args=(source, hear), daemon=True, name=f"child-{self.pid}")
            for source, hear in ((self._process.stdout, self._on_line), (os.fdopen(events, "rb"), self._hear_event))
        ]
        for thread in (*self._readers, threading.Thread(target=self._follow, daemon=True, name=f"end-{self.pid}")):
            thread.start()

    def send_signal(self, number: int) -> None:
        """Send a signal to the command itself, if it is still running."""
        self._process.send_signal(number)

    def stop(self, seconds: float) -> None:
        """Ask the command to shut down, and kill it with all its descendants if it has not after `seconds`."""
        self._process.end(seconds)
        self.ended.wait()

    def kill(self) -> None:
        """Kill the command and all its descendants."""
        self.stop(0.0)

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
        return {**inherited, **PLAIN_OUTPUT, **({"HF_TOKEN": self._token} if self._token else {})}

    def _follow(self) -> None:
        self._process.wait()
        code = self._process.end()
        for thread in self._readers:
            thread.join(SECONDS_FOR_LAST_WORDS)
        self.ended.set()
        self._on_end(code)

    def _read(self, source: IO[bytes], hear: Callable[[str], None]) -> None:
        with source:
            for line in source:
                text = line.decode("utf-8", errors="replace").rstrip()
                if self._token:
                    text = text.replace(self._token, "(token)")
                hear(text)

    def _hear_event(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            logger.warning("An event of the child is not JSON: %.200s", line)
            return
        self._on_event(event)


def for_people(line: str) -> str:
    """Return a line of output without control characters, truncated if it is too long."""
    return printable(NOT_FOR_PEOPLE.sub("", line), keeps_lines=True)[:LONGEST_LINE]


def cause_of_end(code: int, lines: Sequence[str]) -> str:
    """Say why a command ended unexpectedly, with its last line of output."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " It may have run out of memory: choose a smaller micro-batch." if -code == signal.SIGKILL else ""
        return f"Ended by {name}.{hint}"
    said = [line for line in lines if line.strip()]
    own = [line.partition(": ")[2] for line in said if line.startswith("dalle-collab: ")]
    last = (own or said or ["It printed nothing."])[-1].strip()
    return last if own else f"Ended with exit code {code}: {last}"
