"""Tasks that wait for another process, kept from the garbage collector.

asyncio holds tasks weakly, and hivemind 1.1.12 its futures, too: a task that waits for an answer of the DHT's process,
or for a signal of the trainer's, hangs in a cycle with what it waits for, and nowhere else. If garbage is collected
then, it ends in the middle: a search for a group that had been given up kept its lock for ever, and its peer found no
group any more (seen in 2 of 75 runs of two peers whose epochs took a third of a second).
"""

import asyncio
import contextlib
from collections.abc import Iterator

_KEPT: set[asyncio.Task] = set()


@contextlib.contextmanager
def kept_from_garbage() -> Iterator[None]:
    """Keep the task that runs now, and with it what it waits for, until the block is left."""
    task = asyncio.current_task()
    assert task is not None, "outside of a task nothing can be kept"
    _KEPT.add(task)
    try:
        yield
    finally:
        _KEPT.discard(task)
