"""An end in good order: signals that would end this program at once become an exception that unwinds it."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ends_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do inside the block what Ctrl-C does: unwind, so that everything started is ended."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
