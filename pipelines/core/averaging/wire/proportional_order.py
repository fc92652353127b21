"""In which order a peer's parts leave over a link that is full: all of its reducers get theirs at the same pace.

A reducer answers a part when all senders' have come, so answers flow from the start only if parts do. If streams took
equal turns, the parts of small shares would be through early, and those of a helper, which reduces nearly everything,
late: measured with four uplinks of 15 Mbit/s, its answers to the last third of the vector came after all was sent.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable


class ProportionalOrder:
    """Passes one part after the other, first those whose reducers have got the smallest part of their share."""

    def __init__(self, pass_bytes: Callable[[int], Awaitable[None]]) -> None:
        """`pass_bytes` waits until so many bytes may be sent."""
        self._pass_bytes, self._arrivals = pass_bytes, itertools.count()
        self._waiting: dict[tuple[float, int], asyncio.Future[None]] = {}
        self._passing: tuple[float, int] | None = None

    async def pass_part(self, number: int, progress: float) -> None:
        """Wait until a part of so many bytes may be sent, after which its reducer has `progress` of its share."""
        place = (progress, next(self._arrivals))
        turn = self._waiting[place] = asyncio.get_running_loop().create_future()
        self._call_next()
        try:
            await turn
            await self._pass_bytes(number)
        finally:
            self._waiting.pop(place, None)
            if self._passing == place:
                self._passing = None
            self._call_next()

    def _call_next(self) -> None:
        if self._passing is None and self._waiting:
            self._passing = min(self._waiting)
            if not (turn := self._waiting[self._passing]).done():
                turn.set_result(None)
