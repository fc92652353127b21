"""Looking again and again at something beside the training, without which it would go on as well."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

SECONDS_TO_END = 2.0


@contextmanager
def repeated(work: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Do the work at once and every so many seconds during the block, in a thread; what fails is done the next time."""
    ended = threading.Event()
    thread = threading.Thread(target=_repeat, args=(work, seconds, ended), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(SECONDS_TO_END)


def _repeat(work: Callable[[], object], seconds: float, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            work()
        except Exception:
            logger.debug(
                "The thread %s tries again in %.0f s.", threading.current_thread().name, seconds, exc_info=True
            )
        ended.wait(seconds)
