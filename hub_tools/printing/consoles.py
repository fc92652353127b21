"""Where commands print: as wide as the terminal, unwrapped into a pipe, and nothing but printable text."""

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from .printable import printable

UNWRAPPED = 400
"""Columns of a file or pipe; rich would assume 80, and cut a log's lines at words."""


class PrintableConsole(Console):
    """A console for foreign text."""

    def render_str(self, text: str, **how: Any) -> Text:
        """See `Console.render_str`; before the text is measured."""
        return super().render_str(printable(text, keeps_lines=True), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`."""
        for segment in super().render(renderable, options):
            style = segment.style.update_link() if segment.style and segment.style.link else segment.style
            yield segment if segment.control else Segment(printable(segment.text, keeps_lines=True), style)


def open_console(*, stderr: bool = False) -> PrintableConsole:
    """Return a console for the standard output, or for the standard error output."""
    console = PrintableConsole(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNWRAPPED
    return console
