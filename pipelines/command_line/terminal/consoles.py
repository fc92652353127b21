"""The log of commands, line by line; where they print is `hub_tools.printing.consoles`."""

import io
import logging
import re
import time
from collections.abc import Callable
from datetime import datetime
from multiprocessing.sharedctypes import RawArray

import httpx2
from rich.console import Console

from hub_tools.counted import counted, duration
from hub_tools.one_line_errors import CANNOT_REACH, with_run_named
from hub_tools.printing.consoles import UNWRAPPED, PrintableConsole
from hub_tools.printing.printable import one_line

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 2000
"""Of a line; a traceback of a few frames fits."""

ATTEMPTS = re.compile(r"(\s*\* \[[^\]]+\][^\n*]*)+")
"""How libp2p lists each address that it has dialled in vain: a line for each, of all networks of a peer."""

FOLD_SECONDS, LONGEST_FOLD_SECONDS = 180.0, 3600.0
"""For how long a line's repetitions are counted instead of said: at first, and of what does not end."""

VARYING = re.compile(r"\b[0-9a-f]{8,}\b|\d[\d.,:]*")
"""What differs between repetitions: numbers and digests."""

EXPECTED_FAULTS = {
    "pipelines.core.averaging": "a round",
    "pipelines.core.epoch": "a round",
    "pipelines.core.state": "a state",
    "pipelines.features.hub_rounds": "a round",
}
"""Whose warnings are of one event, by the beginning of a logger's name: each step of it says what it saw."""

NOT_EXPECTED = re.compile(r"not finite|outvoted|falsely|accuse|anchor|lacks|[Aa]nother (training )?state")
"""What such a warning has if it is of something else: of a machine that fails, or of somebody who cheats."""

LOST_HUB = "the Hub"


class FoldsRepetitions(logging.Filter):
    """Lets a warning through once, and again after a while, with the number of those in between.

    Repetitions are those that differ in figures alone, all warnings of an expected fault, and all that come of a Hub
    that cannot be reached. Make it before hivemind forks: the processes of a peer say a fault once between them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # When it was said last, for how long it is not said again, and how often it came meanwhile.
        self._faults = {kind: RawArray("d", 3) for kind in (LOST_HUB, *EXPECTED_FAULTS.values())}
        self._others: dict[str, list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        if record.levelno < logging.WARNING:
            return True
        now, kind = self._clock(), _kind_of(record)
        self._others = {name: known for name, known in self._others.items() if now < known[0] + 2 * known[1]}
        known = self._faults[kind] if kind in self._faults else self._others.setdefault(kind, [0.0, 0.0, 0.0])
        said, seconds, count = known
        if now < said + seconds:
            known[2] += 1
            return False
        goes_on = now < said + 2 * seconds
        if goes_on and count:
            again = f"more warnings of {kind}" if kind in self._faults else "more times"
            record.msg = f"{record.getMessage()} (… {count:,.0f} {again} in {duration(now - said)})"
            record.args = None
        known[:] = [now, min(LONGEST_FOLD_SECONDS, 2 * seconds) if goes_on else FOLD_SECONDS, 0.0]
        return True


def _kind_of(record: logging.LogRecord) -> str:
    """Return what a record shares with its repetitions."""
    message = record.getMessage()
    given = record.args if isinstance(record.args, tuple) else ()
    if CANNOT_REACH in message or any(map(_is_of_a_lost_hub, (*given, (record.exc_info or (None, None))[1]))):
        return LOST_HUB
    if record.levelno == logging.WARNING and not NOT_EXPECTED.search(message):
        for start, fault in EXPECTED_FAULTS.items():
            if record.name.startswith(start):
                return fault
    return f"{record.name} {VARYING.sub('#', message)}"


def _is_of_a_lost_hub(error: object) -> bool:
    """Whether an error is that nothing answers; what the Hub answers is an error of its own."""
    while isinstance(error, BaseException) and not isinstance(error, httpx2.TransportError):
        error = error.__cause__
    return isinstance(error, httpx2.TransportError)


class OneLineFormatter(logging.Formatter):
    """Writes each record on one line within a limit: the error instead of its traceback, users' names instead of ids.

    `name_peers` puts names into a text. With `shows_tracebacks` the line has the traceback, too.
    """

    def __init__(
        self,
        layout: str = "%(asctime)s %(levelname)s %(message)s",
        *,
        name_peers: Callable[[str], str] = lambda text: text,
        shows_tracebacks: bool = False,
    ) -> None:
        super().__init__(layout)
        self._name_peers, self._shows_tracebacks = name_peers, shows_tracebacks

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time by ISO 8601, with its zone."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="seconds")

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        shown = record if self._shows_tracebacks else _without_traceback(record)
        text = ATTEMPTS.sub(
            lambda found: f" ({counted(found.group().count('* ['), 'address', 'addresses')} tried) ",
            self._name_peers(with_run_named(super().format(shown))),
        )
        return one_line(text, MOST_CHARACTERS)


def _without_traceback(record: logging.LogRecord) -> logging.LogRecord:
    """Return the record with its error, unless the message names that already, in place of the error's traceback."""
    message, error = record.getMessage(), record.exc_info[1] if record.exc_info else None
    if error is not None and not (str(error) and str(error) in message):
        message += f" ({error!r})"
    return logging.makeLogRecord(
        {**vars(record), "msg": message, "args": None, "exc_info": None, "exc_text": None, "stack_info": None}
    )


class LogLines(io.TextIOBase):
    """Takes what is printed for people and logs each line of it."""

    @classmethod
    def console(cls) -> Console:
        """Return a console whose lines go into the log."""
        return PrintableConsole(file=cls(), width=UNWRAPPED, color_system=None)

    def write(self, text: str) -> int:
        """Log each line that is not empty."""
        for line in text.splitlines():
            if line.strip():
                logger.info("%s", line.rstrip())
        return len(text)
