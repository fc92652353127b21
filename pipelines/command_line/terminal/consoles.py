"""Where commands print: as wide as the terminal, or unwrapped into a file or a pipe."""

import os

from rich.console import Console

UNWRAPPED = 400
"""Columns of a file or pipe; rich would assume 80, and cut a log's lines at words."""


def open_console(*, stderr: bool = False) -> Console:
    """Return a console for the standard output, or for the standard error output."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNWRAPPED
    return console
