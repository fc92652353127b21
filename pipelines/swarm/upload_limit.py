"""A limit on what a peer sends: one clock of sent bytes, shared by all processes that send for it."""

import asyncio
import ctypes
import multiprocessing
import time

BYTES_PER_MEGABIT = 125_000


class UploadLimit:
    """Lets bytes pass at a rate; make it before the averagers are forked, so that they share it."""

    def __init__(self, megabits_per_second: float) -> None:
        self._bytes_per_second = megabits_per_second * BYTES_PER_MEGABIT
        self._free_from = multiprocessing.Value(ctypes.c_double, 0.0)

    def book(self, number: int, now: float) -> float:
        """Reserve the line for `number` bytes; return the seconds until they may leave, counted from `now`.

        Nothing is saved up: after a rest the line is free at once, but no faster. The monotonic clock is the machine's.
        """
        with self._free_from.get_lock():
            start = max(now, self._free_from.value)
            self._free_from.value = start + number / self._bytes_per_second
            return start - now


async def pass_bytes(limit: UploadLimit | None, number: int) -> None:
    """Wait until `number` bytes may be sent; without a limit that is now."""
    if limit is not None:
        await asyncio.sleep(limit.book(number, time.monotonic()))
