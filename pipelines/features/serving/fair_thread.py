"""One thread that computes for many, of whom nobody can take the others' time by asking for more at once."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
Turn = tuple[Future[Any], Callable[[], object]]


class FairThread:
    """Computes one thing at a time; of the addresses that wait, the one that has had the least time is next.

    Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with durations that are known afterwards: an address
    that comes back starts where the others are, so that time that it did not use is not saved up.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._changed = clock, threading.Condition()
        self._waiting: dict[str, deque[Turn]] = {}
        self._used: dict[str, float] = {}
        self._now = 0.0
        """The time that whoever was last in turn had had before. Addresses that have had no more are forgotten."""
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, address: str, compute: Callable[[], T]) -> Future[T]:
        """Compute something for an address when its turn comes, in the order in which it has asked."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("This thread has ended.")
            # What was cancelled is forgotten, with the tensors that it holds.
            line = deque(each for each in self._waiting.get(address, ()) if not each[0].cancelled())
            self._waiting[address] = line
            line.append((future, compute))
            self._used.setdefault(address, self._now)
            self._changed.notify()
        return future

    def close(self) -> None:
        """Compute nothing more; what waits is cancelled."""
        with self._changed:
            self._is_closed = True
            for future, _ in (each for line in self._waiting.values() for each in line):
                future.cancel()
            self._waiting.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            address, (future, compute) = turn
            started = self._clock()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(compute())
                except BaseException as error:
                    future.set_exception(error)
            with self._changed:
                self._used[address] += self._clock() - started

    def _next(self) -> tuple[str, Turn] | None:
        """Wait for the next turn; None: the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            address = min(self._waiting, key=self._used.__getitem__)
            self._now = self._used[address]
            line = self._waiting[address]
            turn = line.popleft()
            if not line:
                del self._waiting[address]
            kept = {address, *self._waiting}
            self._used = {one: used for one, used in self._used.items() if used > self._now or one in kept}
            return address, turn
