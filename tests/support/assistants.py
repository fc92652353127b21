"""`dalle-collab run assist` as a process for tests: what it writes, and how long to wait for it."""

import contextlib
from functools import partial

from published_runs import LOOPBACK, started_command
from running_programs import end_of, wait_for

from hub_tools.processes.event_files import read_events

SECONDS_TO_START = 150


class Assistant:
    """A `dalle-collab run assist` process and its reports."""

    def __init__(self, process, events, log):
        self.process, self._events, self._log = process, events, log

    def looks(self):
        """Return all reports so far."""
        return read_events(self._events)

    def wait_until(self, is_so, what, seconds=SECONDS_TO_START, after=0):
        """Return the first report for which `is_so`, of those from number `after` on."""

        def look():
            return next(filter(is_so, self.looks()[after:]), None)

        return wait_for(look, what, seconds, process=self.process, log=self._log)

    def log(self):
        """Return the end of what it printed."""
        return end_of(self._log)


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
