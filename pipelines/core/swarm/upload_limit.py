"""An upload limit for a peer: one clock of sent bytes, shared by all its sending processes."""

import asyncio
import ctypes
import multiprocessing
import time

BYTES_PER_MEGABIT = 125_000


class UploadLimit:
    """Limits bytes to a rate; create it before the averagers are forked, so that they share it."""

    def __init__(self, megabits_per_second: float) -> None:
        self._bytes_per_second = megabits_per_second * BYTES_PER_MEGABIT
        self._free_from = multiprocessing.Value(ctypes.c_double, 0.0)

    def change(self, megabits_per_second: float) -> None:
        """Limit this process from now on to another rate; infinity: to none."""
        self._bytes_per_second = megabits_per_second * BYTES_PER_MEGABIT

    def is_full(self, now: float) -> bool:
        """Return whether bytes that are booked wait for the link."""
        return self._free_from.value > now

    def book(self, number: int, now: float) -> float:
        """Reserve the link for `number` bytes; return the seconds until they may be sent, counted from `now`.

        Idle time is not credited: after a pause the link is free at once, but no faster. The clock is machine-wide.
        """
        with self._free_from.get_lock():
            start = max(now, self._free_from.value)
            self._free_from.value = start + number / self._bytes_per_second
            return start - now


async def pass_bytes(limit: UploadLimit | None, number: int) -> None:
    """Wait until `number` bytes may be sent; without a limit, or if there are none, that is now."""
    if limit is not None and number:
        await asyncio.sleep(limit.book(number, time.monotonic()))
