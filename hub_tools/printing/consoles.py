"""Where commands print: as wide as the terminal, unwrapped into a pipe, and nothing but printable text."""

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.highlighter import Highlighter
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from .printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

UNWRAPPED = 400
"""Columns of a file or pipe; rich would assume 80, and cut a log's lines at words."""


class PrintableConsole(Console):
    """A console for foreign text: no markup unless a call says `markup=True`, and each text is one line."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"markup": False, **how})

    def status(self, status: RenderableType, **how: Any) -> Status:
        return PrintableStatus(_literal(status), console=self, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        """See `Console.render_str`; before the text is measured."""
        return super().render_str(printable(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and "\n" in renderable.plain:
            renderable = renderable.copy()
            renderable.plain = renderable.plain.replace("\n", " ")
        for segment in super().render(renderable, options):
            style = segment.style.update_link() if segment.style and segment.style.link else segment.style
            yield segment if segment.control else Segment(printable(segment.text, keeps_lines=True), style)


class PrintableStatus(Status):
    """A line of state in which brackets are no markup."""

    def update(self, status: RenderableType | None = None, **how: Any) -> None:
        super().update(_literal(status), **how)


def _literal(shown: object) -> Any:
    return Text(printable(shown)) if isinstance(shown, str) else shown


class MakesPrintable(Highlighter):
    """Makes the text of a bar printable before it is measured."""

    def highlight(self, text: Text) -> None:
        text.plain = printable(text.plain)


def open_progress(*columns: "ProgressColumn", console: Console | None = None, transient: bool = False) -> "Progress":
    """Return progress bars in whose columns of text brackets are no markup; on stderr by default.

    A file or a pipe gets a line now and then instead.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from .progress_lines import ProgressInLines

    columns = columns or (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    for column in columns:
        if type(column) is TextColumn:
            column.markup, column.highlighter = False, MakesPrintable()
    console = console or open_console(stderr=True)
    kind = Progress if console.is_terminal else ProgressInLines
    # What is printed meanwhile stays in the file or the pipe that it is for.
    return kind(*columns, console=console, transient=transient, redirect_stdout=sys.stdout.isatty())


def open_console(*, stderr: bool = False) -> PrintableConsole:
    """Return a console for the standard output, or for the standard error output."""
    console = PrintableConsole(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNWRAPPED
    return console
