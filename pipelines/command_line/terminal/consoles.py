"""The log of commands, line by line; where they print is `hub_tools.printing.consoles`."""

import io
import logging
import re
from collections.abc import Callable

from rich.console import Console

from hub_tools.counted import counted
from hub_tools.printing.consoles import UNWRAPPED, PrintableConsole
from hub_tools.printing.printable import one_line

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 2000
"""Of a line; a traceback of a few frames fits."""

ATTEMPTS = re.compile(r"(\s*\* \[[^\]]+\][^\n*]*)+")
"""How libp2p lists each address that it has dialled in vain: a line for each, of all networks of a peer."""


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

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        shown = record if self._shows_tracebacks else _without_traceback(record)
        text = ATTEMPTS.sub(
            lambda found: f" ({counted(found.group().count('* ['), 'address', 'addresses')} tried) ",
            self._name_peers(super().format(shown)),
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
