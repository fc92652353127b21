"""What a demo is doing: on a terminal in a line that lives, in a file or a pipe in a line now and then."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.status import Status

SECONDS_BETWEEN_LINES = 15.0
"""In a file; people and programs that read along may count on 30, on a busy machine, too."""


@dataclass(kw_only=True)
class _Work:
    description: str
    started: float
    detail: Callable[[], str] = lambda: ""


class ProgressLines:
    """Tells what is being done, inside `doing`; the innermost work is what is told."""

    def __init__(self, console: Console, seconds_between: float = SECONDS_BETWEEN_LINES) -> None:
        self.console = console
        self._seconds_between = seconds_between
        self._works: list[_Work] = []
        self._last_line = time.monotonic()
        self._status: Status | None = None

    @contextlib.contextmanager
    def doing(self, description: str) -> Iterator[None]:
        """Tell that something is being done, and for how long, until the block ends."""
        work = _Work(description=description, started=time.monotonic())
        self._works.append(work)
        try:
            if len(self._works) > 1:
                self._show()
                yield
            else:
                with self._live() if self.console.is_terminal else self._in_lines():
                    yield
        finally:
            self._works.remove(work)
            self._show()

    def tell(self, detail: Callable[[], str]) -> None:
        """Tell from now on what this function returns, beside the innermost work; lines in files ask it when due."""
        if self._works:
            self._works[-1].detail = detail
            self._show()

    def say(self, line: str, *, markup: bool = False) -> None:
        """Print a line that stays."""
        self._last_line = time.monotonic()
        self.console.print(line, markup=markup, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def _live(self) -> Iterator[None]:
        with self.console.status(f"{self._text(with_time=False)} ...") as self._status:
            try:
                yield
            finally:
                self._status = None

    @contextlib.contextmanager
    def _in_lines(self) -> Iterator[None]:
        is_over = threading.Event()
        thread = threading.Thread(target=self._print_lines, args=(is_over,), name="progress lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _print_lines(self, is_over: threading.Event) -> None:
        while not is_over.wait(max(0.0, self._last_line + self._seconds_between - time.monotonic())):
            if time.monotonic() - self._last_line < self._seconds_between:
                continue
            try:
                self.say(f"  {self._text()}")
            except (OSError, SystemExit):  # nobody reads the pipe any more, or the disk is full: the work goes on
                return

    def _text(self, *, with_time: bool = True) -> str:
        works = self._works[-1:]  # the thread may look when the last one has just ended
        if not works:
            return ""
        (work,) = works
        try:
            detail = work.detail()
        except OSError:
            detail = ""
        seconds = f"{time.monotonic() - work.started:.0f} s so far" if with_time else ""
        said = ", ".join(part for part in (detail, seconds) if part)
        return f"{work.description}{': ' if said else ''}{said}"

    def _show(self) -> None:
        if self._status is not None:
            self._status.update(f"{self._text(with_time=False)} ...")
