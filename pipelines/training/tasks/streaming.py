"""Shared by the streams of all tasks: passes over a dataset of the Hub, and which records are held out."""

import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import datasets

from hub_tools.hub_client import is_outage
from hub_tools.one_line_errors import explain_error
from pipelines.training.run.task import Batch

logger = logging.getLogger(__name__)

Read = TypeVar("Read")

NUM_OPEN_SHARDS = 2
"""Shards read at the same time. `datasets` would open 10 and fetch them whole before the first record."""

SECONDS_BETWEEN_PASSES = 0.1
"""Time for Arrow's reading threads to end after a pass."""

SECONDS_BEFORE_NEXT_TRY = (5.0, 15.0, 60.0)
"""`datasets` retries a failed read for some ten minutes. After that the stream retries for ever with these pauses."""


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


def through_outages(
    read: Callable[[], Read], pauses: Sequence[float] = SECONDS_BEFORE_NEXT_TRY, *, for_ever: bool = True
) -> Read:
    """Return what `read` returns; while the Hub is down, try again after a pause.

    pauses: seconds; the last one is repeated, or, if it is not to go on for ever, followed by the last try.
    """
    for number in itertools.count():
        try:
            return read()
        except Exception as error:
            if not is_outage(error) or (number >= len(pauses) and not for_ever):
                raise
            pause = pauses[min(number, len(pauses) - 1)]
            logger.warning("The dataset cannot be read (%s). Retrying in %.0f s.", explain_error(error), pause)
            time.sleep(pause)
    raise AssertionError("unreachable")


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
