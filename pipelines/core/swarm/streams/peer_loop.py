"""The one event loop of a process that talks to others over streams.

hivemind caches one connection to the libp2p daemon in each process, which belongs to the loop that asked for it first:
all of a process's streams live in this loop, and other threads hand it coroutines.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Protocol, TypeVar

from hivemind.p2p import P2P

Result = TypeVar("Result")


class HasDaemon(Protocol):
    """A DHT node, or whatever else has a libp2p daemon."""

    async def replicate_p2p(self) -> P2P:
        """Return a connection to the daemon; called in the loop."""


class PeerLoop:
    """Runs in a thread of its own until it is closed. Use as a context manager, after everything has been forked."""

    p2p: P2P
    """This process's connection to the DHT node's daemon; only for coroutines in this loop."""

    def __init__(self, dht: HasDaemon) -> None:
        self._dht, self._loop = dht, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="streams")

    def __enter__(self) -> "PeerLoop":
        self._thread.start()
        try:
            self.p2p = self.call(self._dht.replicate_p2p())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.call(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Coroutine[object, object, Result]) -> "Future[Result]":
        """Run a coroutine in the loop, from any other thread; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[object, object, Result], timeout: float | None = None) -> Result:
        """Run a coroutine in the loop and wait for it, from any other thread; raises what it raises."""
        future = self.start(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    async def _end_all(self) -> None:
        if hasattr(self, "p2p"):
            await self.p2p.shutdown()
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()
