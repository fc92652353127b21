"""A clean shutdown: signals that would end this program at once become an exception that unwinds it."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ends_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP act like Ctrl-C inside the block: unwind, so that everything started is stopped."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
