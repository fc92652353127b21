"""Prefetching: reading the dataset over the network does not stall the computation."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from pipelines.core.run.task import Batch, BatchSize, size_of_next

MIN_PREFETCHED_BATCHES = 8
NUM_PREFETCHED_SAMPLES = 1024
"""What a peer trains on while the Hub is down: 10 MB at the paper's size."""

SECONDS_BETWEEN_LOOKS = 0.2
"""How soon a thread waiting for a batch, or for room for one, notices the stop."""

SECONDS_TO_END = 10.0
"""Longest wait for a reading thread in the middle of a request."""


@contextlib.contextmanager
def prefetched(
    make_batches: Callable[[], Iterator[Batch]],
    batch_size: BatchSize = NUM_PREFETCHED_SAMPLES,
    stop: threading.Event | None = None,
) -> Iterator[Iterator[Batch]]:
    """Prefetch batches in a thread, so that the network does not stall the computation; errors are raised in order.

    Enough for `NUM_PREFETCHED_SAMPLES` with this batch size, and some in any case. The batches end when `stop` is
    set, also while the reader waits for one.
    """
    ahead: queue.Queue[Batch | Exception] = queue.Queue()
    is_over = threading.Event()

    def fill() -> None:
        try:
            for batch in make_batches():
                ahead.maxsize = max(MIN_PREFETCHED_BATCHES, NUM_PREFETCHED_SAMPLES // size_of_next(batch_size))
                if not _put(ahead, batch, is_over):
                    return
        except Exception as error:  # handed to the consumer, which raises it
            _put(ahead, error, is_over)

    def drain() -> Iterator[Batch]:
        while stop is None or not stop.is_set():
            try:
                item = ahead.get(timeout=SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            yield item

    thread = threading.Thread(target=fill, name="prefetching", daemon=True)
    thread.start()
    try:
        yield drain()
    finally:
        is_over.set()
        thread.join(timeout=SECONDS_TO_END)


def _put(ahead: queue.Queue, item: Batch | Exception, is_over: threading.Event) -> bool:
    while not is_over.is_set():
        with contextlib.suppress(queue.Full):
            ahead.put(item, timeout=SECONDS_BETWEEN_LOOKS)
            return True
    return False
