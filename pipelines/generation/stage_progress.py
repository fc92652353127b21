"""Show the progress of work in stages as one bar per stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

OnProgress = Callable[[str, int, int | None, str], None]
"""Called with the stage, what is done, what is to do (None: unknown) and a few words for people."""


@contextmanager
def stage_progress(console: Console | None = None) -> Iterator[OnProgress]:
    """Yield a function to report progress to; each new stage gets its own bar, on stderr unless told otherwise."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        tasks = {}

        def report(stage: str, done: int, total: int | None, detail: str) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, detail=detail)
            progress.update(tasks[stage], completed=done, total=total, detail=detail)

        yield report
