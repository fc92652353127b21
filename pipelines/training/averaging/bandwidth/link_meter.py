"""What a peer's link really reaches while it sends and receives parts.

Not the mean over a round: most of a round, a fast peer waits for a slow one. What counts is the fastest stretch of a
round. If the link ran at that pace for most of the round, it is full; else it may carry more, and is taken for more
until it turns out to be full.
"""

import asyncio
import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.swarm.upload_limit import BYTES_PER_MEGABIT
from pipelines.training.averaging.bandwidth.shares import Link
from pipelines.training.averaging.bandwidth.tcp_counters import Traffic

SECONDS_BETWEEN_LOOKS = 0.1
STRETCH_SECONDS = 0.3
"""Shorter ones measure bursts."""

MIN_BYTES = 2**20
"""A direction that has carried less in a round says nothing about the link."""

FULL_PACE, FULL_SHARE = 0.7, 0.5
"""A link is full that ran at this part of its fastest pace for this part of the round."""

HEADROOM = 2.0
"""A link that was not full is taken for this multiple of its fastest pace."""

NUM_ROUNDS = 3
"""Rounds whose median counts."""


@dataclass(frozen=True)
class Look:
    """The bytes that had passed at a time, in seconds."""

    at: float
    sent: int
    received: int


def rate_in(times: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the Mbit/s that a direction of a link carries, by the bytes passed at each time; None: too few."""
    if len(times) < 2 or counts[-1] - counts[0] < MIN_BYTES:
        return None
    rates, begin = [], 0
    for end in range(len(times)):
        while begin < end and times[end] - times[begin + 1] >= STRETCH_SECONDS:
            begin += 1
        if times[end] - times[begin] >= STRETCH_SECONDS:
            rates.append((counts[end] - counts[begin]) / (times[end] - times[begin]) / BYTES_PER_MEGABIT)
    if not rates:
        return None
    fastest = max(rates)
    is_full = sum(rate >= FULL_PACE * fastest for rate in rates) >= FULL_SHARE * len(rates)
    return fastest if is_full else HEADROOM * fastest


@dataclass(kw_only=True)
class LinkMeter:
    """Measures a peer's link in each round, and remembers the last ones."""

    count: Callable[[], Mapping[int, Traffic]]
    """The traffic of each connection so far; raises OSError where that cannot be known."""

    _ups: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))
    _downs: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))

    @property
    def up(self) -> float | None:
        """Mbit/s; None: not measured."""
        return statistics.median(self._ups) if self._ups else None

    @property
    def down(self) -> float | None:
        """Mbit/s; None: not measured."""
        return statistics.median(self._downs) if self._downs else None

    @property
    def link(self) -> Link | None:
        """What is known of both directions; one that was hardly used counts like the other."""
        up, down = self.up or self.down, self.down or self.up
        return None if up is None or down is None else Link(up=up, down=down)

    async def watch(self) -> None:
        """Measure a round; cancel it at its end."""
        looks: list[Look] = []
        known: Mapping[int, Traffic] = {}
        sent = received = 0
        with contextlib.suppress(OSError):
            try:
                while True:
                    now = self.count()
                    for inode, traffic in now.items() if looks else ():
                        before = known.get(inode, Traffic(0, 0))
                        sent += traffic.sent - before.sent
                        received += traffic.received - before.received
                    known = now
                    looks.append(Look(time.monotonic(), sent, received))
                    await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                self.note_round(looks)

    def note_round(self, looks: Sequence[Look]) -> None:
        """Take what was seen in a round."""
        times = [look.at for look in looks]
        for rates, counts in (
            (self._ups, [look.sent for look in looks]),
            (self._downs, [look.received for look in looks]),
        ):
            if (rate := rate_in(times, counts)) is not None:
                rates.append(rate)
