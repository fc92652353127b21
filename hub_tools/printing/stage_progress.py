"""Show the progress of work in stages: one bar per stage on a terminal, a line now and then in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hub_tools.printing.consoles import PrintableConsole, open_progress

OnProgress = Callable[[str, int, int | None, str], None]
"""Called with the stage, what is done, what is to do (None: unknown) and a few words for people."""

LINE_INTERVAL_SECONDS = 10.0


def report_nothing(stage: str, done: int, total: int | None, detail: str) -> None:
    """An `OnProgress` that nobody watches."""


@contextmanager
def stage_progress(console: Console | None = None) -> Iterator[OnProgress]:
    """Yield a function to report progress to, which shows it on stderr unless told otherwise."""
    console = console or PrintableConsole(stderr=True)
    if not console.is_terminal:
        yield _line_reporter(console)
        return
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with open_progress(*columns, console=console) as progress:
        yield _bar_reporter(progress)


def _bar_reporter(progress: Progress) -> OnProgress:
    tasks = {}

    def report(stage: str, done: int, total: int | None, detail: str) -> None:
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=total, detail=detail)
        progress.update(tasks[stage], completed=done, total=total, detail=detail)

    return report


def _line_reporter(console: Console) -> OnProgress:
    last_told: dict[str, float] = {}

    def report(stage: str, done: int, total: int | None, detail: str) -> None:
        now = time.monotonic()
        if done == total or now - last_told.get(stage, -LINE_INTERVAL_SECONDS) >= LINE_INTERVAL_SECONDS:
            last_told[stage] = now
            amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            console.print(f"{stage}: {amount} {detail}", highlight=False, soft_wrap=True)

    return report
