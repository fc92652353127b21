"""What a peer's link really reaches while it sends and receives parts.

Not the mean over a round: most of a round, a fast peer waits for a slow one. While its queue is full, a link shows what
it carries. One that was hardly ever full may carry more than its fastest stretch: it is taken for more, until it turns
out to be full.
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

MIN_WAITING = 2**14
"""Bytes in the queue of a link that is full."""

FULL_SHARE = 1 / 3
"""A link that was full for a smaller part of the round may carry more than it did."""

EVEN_PACE, EVEN_SHARE = 0.5, 0.5
"""What arrives shows no queue. A direction is full that ran at this part of its fastest pace for this part of the
round: bursts look different."""

HEADROOM = 2.0
"""A direction that was not full is taken for this multiple of its fastest pace."""

NUM_ROUNDS = 3
"""Rounds whose median counts."""


@dataclass(frozen=True)
class Look:
    """The bytes that had passed at a time, in seconds, and those that waited then."""

    at: float
    sent: int
    received: int
    waiting: int


@dataclass(frozen=True)
class _Stretch:
    up: float
    down: float
    is_full: bool


def measured(looks: Sequence[Look], *, sends: bool) -> tuple[float | None, float | None]:
    """Return the Mbit/s that a link carries up and down, by what was seen in a round; None: too little has passed.

    `sends`: whether the peer has a vector of its own. What a helper receives comes at the pace of the others' links, and
    says nothing against its own.
    """
    stretches, begin = [], 0
    for end, last in enumerate(looks):
        while begin < end and last.at - looks[begin + 1].at >= STRETCH_SECONDS:
            begin += 1
        first = looks[begin]
        if (seconds := last.at - first.at) >= STRETCH_SECONDS:
            scale = 1 / (seconds * BYTES_PER_MEGABIT)
            up, down = (last.sent - first.sent) * scale, (last.received - first.received) * scale
            stretches.append(_Stretch(up, down, is_full=min(first.waiting, last.waiting) >= MIN_WAITING))
    if not stretches:
        return None, None
    full = [stretch.up for stretch in stretches if stretch.is_full]
    fastest = max(stretch.up for stretch in stretches)
    up = statistics.median(full) if len(full) >= FULL_SHARE * len(stretches) else HEADROOM * fastest
    fastest = max(stretch.down for stretch in stretches)
    even = [stretch.down for stretch in stretches if stretch.down >= EVEN_PACE * fastest]
    is_even = sends and len(even) >= EVEN_SHARE * len(stretches)
    down = statistics.fmean(even) if is_even else HEADROOM * fastest
    return (
        up if looks[-1].sent - looks[0].sent >= MIN_BYTES else None,
        down if looks[-1].received - looks[0].received >= MIN_BYTES else None,
    )


@dataclass(kw_only=True)
class LinkMeter:
    """Measures a peer's link in each round, and remembers the last ones."""

    count: Callable[[], Mapping[int, Traffic]]
    """The traffic of each connection so far; raises OSError where that cannot be known."""

    _ups: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))
    _downs: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))

    @property
    def link(self) -> Link | None:
        """Medians of the last rounds; a direction that was hardly used counts like the other. None: not measured."""
        up, down = (statistics.median(rates) if rates else None for rates in (self._ups, self._downs))
        up, down = up or down, down or up
        return None if up is None or down is None else Link(up=up, down=down)

    async def watch(self, *, sends: bool) -> None:
        """Measure a round; cancel it at its end. `sends`: see `measured`."""
        looks: list[Look] = []
        known: Mapping[int, Traffic] = {}
        sent = received = 0
        with contextlib.suppress(OSError):
            try:
                while True:
                    now = self.count()
                    for inode, traffic in now.items() if looks else ():
                        before = known.get(inode, Traffic(0, 0, 0))
                        sent += traffic.sent - before.sent
                        received += traffic.received - before.received
                    known = now
                    waiting = sum(traffic.waiting for traffic in now.values())
                    looks.append(Look(time.monotonic(), sent, received, waiting))
                    await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                self.note_round(looks, sends=sends)

    def note_round(self, looks: Sequence[Look], *, sends: bool) -> None:
        """Take what was seen in a round."""
        for rates, rate in zip((self._ups, self._downs), measured(looks, sends=sends), strict=True):
            if rate is not None:
                rates.append(rate)
