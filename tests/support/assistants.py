"""`dalle-collab run assist` as a process for tests: what it writes, and how long to wait for it."""

import contextlib
import json
import time
from functools import partial

from published_runs import LOOPBACK, started_command

SECONDS_TO_START = 150


class Assistant:
    """A `dalle-collab run assist` process and its reports."""

    def __init__(self, process, events, log):
        self.process, self._events, self._log = process, events, log

    def looks(self):
        """Return all reports so far."""
        lines = self._events.read_text(encoding="utf-8").splitlines(keepends=True) if self._events.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_until(self, is_so, what, seconds=SECONDS_TO_START, after=0):
        """Return the first report for which `is_so`, of those from number `after` on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for look in self.looks()[after:]:
                if is_so(look):
                    return look
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}: {self.log()}"
            time.sleep(0.1)
        raise AssertionError(f"not {what} within {seconds} s: {self.looks()[-1:]} {self.log()}")

    def log(self):
        """Return the end of what it printed."""
        return self._log.read_text(encoding="utf-8")[-3000:]


@contextlib.contextmanager
def assistant(material, repository, folder, name, *options, forked=True):
    """Start an auxiliary peer; end it and all that it started with the block.

    One that is `forked` is the worker alone, at once; otherwise it is the whole command, as a person starts it.
    """
    events, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    arguments = ["run", "assist", repository, "--host", LOOPBACK, "--events", str(events)]
    start = material.commands.started_worker if forked else partial(started_command, material.hub)
    with start(log, *arguments, *options) as process:
        yield Assistant(process, events, log)
