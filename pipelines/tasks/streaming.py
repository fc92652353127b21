"""Shared by the streams of all tasks: passes over a dataset of the Hub, and which records are held out."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import datasets

from hub_tools.waiting.outages import SECONDS_BEFORE_NEXT_TRY, through_outages
from pipelines.core.run.task import Batch

NUM_OPEN_SHARDS = 2
"""Shards read at the same time. `datasets` would open 10 and fetch them whole before the first record."""

SECONDS_BETWEEN_PASSES = 0.1
"""Time for Arrow's reading threads to end after a pass."""


def prepare_streaming() -> None:
    """Configure `datasets` to stream from the Hub in use, and from nowhere else."""
    # The anonymous download counter and the viewer's Parquet export are on other hosts than the Hub in use.
    datasets.config.USE_PARQUET_EXPORT = False
    # `datasets` waits 5 s for Arrow's threads after every pass; small datasets would stall the peer again and again.
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = SECONDS_BETWEEN_PASSES


def is_held_out(content: bytes, share: float) -> bool:
    """Tell from its content alone whether a record is held out: a duplicate is on the same side as the original."""
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "big") < int(share * 2**64)


def passes_through_outages(
    one_pass: Callable[[int], Iterator[Batch]], pauses: Sequence[float] = SECONDS_BEFORE_NEXT_TRY
) -> Iterator[Batch]:
    """Yield what passes 0, 1, 2 ... yield. If an outage of the Hub ends one, the next follows after a pause.

    pauses: seconds; the last one is repeated until there is a batch again.
    """
    passes = map(one_pass, itertools.count())
    # A pass that an outage has ended has no more batches.
    batches = itertools.chain.from_iterable(passes)
    while True:
        yield through_outages(partial(next, batches), pauses)


def check_pass(num_batches: int, repository: str, batch_size: int, records: str = "records") -> None:
    """Raise ValueError if a whole pass did not fill one batch."""
    if num_batches == 0:
        raise ValueError(
            f"Dataset {repository} has fewer {records} than one micro-batch of {batch_size}. "
            f"Choose a smaller one with --micro-batch-size."
        )
