"""Where commands print: as wide as the terminal, unwrapped into a pipe, and line by line into the log of a service."""

import io
import logging
import os
import re

from rich.console import Console

from hub_tools.counted import counted

logger = logging.getLogger(__name__)

UNWRAPPED = 400
"""Columns of a file or pipe; rich would assume 80, and cut a log's lines at words."""

MOST_CHARACTERS = 2000
"""Of a line; a traceback of a few frames fits."""

ATTEMPTS = re.compile(r"(\s*\* \[[^\]]+\][^\n*]*)+")
"""How libp2p lists each address that it has dialled in vain: a line for each, of all networks of a peer."""


def open_console(*, stderr: bool = False) -> Console:
    """Return a console for the standard output, or for the standard error output."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNWRAPPED
    return console


class OneLineFormatter(logging.Formatter):
    """Writes each record on one line, tracebacks and libp2p's lists of attempts included, within a limit."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        text = ATTEMPTS.sub(
            lambda found: f" ({counted(found.group().count('* ['), 'address', 'addresses')} tried) ",
            super().format(record),
        )
        line = " ".join(text.split())
        return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 4] + " ..."


class LogLines(io.TextIOBase):
    """Takes what is printed for people and logs each line of it."""

    @classmethod
    def console(cls) -> Console:
        """Return a console whose lines go into the log."""
        return Console(file=cls(), width=UNWRAPPED, color_system=None)

    def write(self, text: str) -> int:
        """Log each line that is not empty."""
        for line in text.splitlines():
            if line.strip():
                logger.info("%s", line.rstrip())
        return len(text)
