"""What a peer's link really reaches while it sends and receives parts.

Not the mean over a round: most of a round, a fast peer waits for a slow one. What counts is the fastest stretch. If
bytes waited for nearly all of its connections for most of the round, then its own link was full, and carries no more.
Else it may carry more (what waits for one connection alone waits for that peer's link), and it is taken for more until
it turns out to be full. Nor is it full if it sends about as much as all others together can receive, by what they say:
then everything waits for them. A helper with 200 Mbit/s among four homes of 15 would take itself for one of 40.

A full link is paced, a little below what it carries. What a peer has handed to its many streams at once arrives at the
same time, late; paced, its parts arrive one after the other, and the answers come while it still sends. Measured in a
group of four with one link of 10 Mbit/s: its answers lagged behind its parts by nine parts, 2 of the round's 9 s.
"""

import asyncio
import contextlib
import itertools
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.core.averaging.division import Link
from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT, UploadLimit
from pipelines.features.bandwidth.tcp_counters import Traffic

SECONDS_BETWEEN_LOOKS = 0.1
STRETCH_SECONDS = 1.0
"""Shorter ones measure queues that empty after a pause."""

MIN_BYTES = 2**20
"""A direction that has carried less in a round says nothing about the link."""

MIN_WAITING = 2**14
"""Bytes in the queue of a connection that waits for a link."""

MIN_OF_MEAN = 0.25
"""A connection that has carried a smaller part of the mean connection's bytes does not count."""

FULL_CONNECTIONS, FULL_SECONDS = 0.6, 0.5
"""A link is full while this share of its connections waits, and was in a round if it was for so long at a stretch."""

HEADROOM = 2.0
"""A link that was not full is taken for this multiple of its fastest stretch."""

PACE = 0.95
"""A full link is paced at this part of what it carries."""

PROBE = 1.1
"""A link that was full only by its own pace is taken for this multiple, so that it finds out about a faster one."""

NUM_ROUNDS = 3
"""Rounds whose median counts."""

MOST_OF_OTHERS = 0.6
"""A link that sends this part of what all others can receive, or more, waits for theirs."""

NONE_YET = Traffic(0, 0, 0)


@dataclass(frozen=True)
class Look:
    """The bytes that had passed at a time, in seconds, and the connections that waited then."""

    at: float
    sent: int
    received: int
    waiting: Collection[int] = frozenset()
    is_paced: bool = False
    """Whether bytes waited for the pace."""


def measured(
    looks: Sequence[Look], used: Collection[int], others_mbit: float = math.inf
) -> tuple[float | None, float | None]:
    """Return the Mbit/s that a link carries up and down, by what was seen in a round; None: too little has passed.

    `used`: the connections that have carried the bytes sent. `others_mbit`: what all others together can receive.
    """
    up, down = _fastest(looks)
    factor = _factor(looks, used, others_mbit)
    has_sent = bool(looks) and looks[-1].sent - looks[0].sent >= MIN_BYTES
    has_received = bool(looks) and looks[-1].received - looks[0].received >= MIN_BYTES
    return (factor * up or None) if has_sent else None, (factor * down or None) if has_received else None


def _fastest(looks: Sequence[Look]) -> tuple[float, float]:
    """Return the Mbit/s of the fastest stretches, up and down; 0: there was none."""
    ups, downs, begin = [0.0], [0.0], 0
    for end, last in enumerate(looks):
        while begin < end and last.at - looks[begin + 1].at >= STRETCH_SECONDS:
            begin += 1
        first = looks[begin]
        if (seconds := last.at - first.at) >= STRETCH_SECONDS:
            ups.append((last.sent - first.sent) / seconds / BYTES_PER_MEGABIT)
            downs.append((last.received - first.received) / seconds / BYTES_PER_MEGABIT)
    return max(ups), max(downs)


def _factor(looks: Sequence[Look], used: Collection[int], others_mbit: float) -> float:
    """Return what a link is taken for, as a multiple of its fastest stretch: 1 if it was full."""
    if _fastest(looks)[0] >= MOST_OF_OTHERS * others_mbit:
        return HEADROOM
    if _lasts(looks, lambda look: len(set(used).intersection(look.waiting)) >= max(1, FULL_CONNECTIONS * len(used))):
        return 1.0
    return PROBE if _lasts(looks, lambda look: look.is_paced) else HEADROOM


def _lasts(looks: Sequence[Look], is_so: Callable[[Look], bool]) -> bool:
    """Return whether something is so for `FULL_SECONDS` at a stretch, but for single looks at which it is not."""
    begin: float | None = None
    for before, look in itertools.pairwise(looks):
        if is_so(look):
            begin = look.at if begin is None else begin
            if look.at - begin >= FULL_SECONDS:
                return True
        elif not is_so(before):
            begin = None
    return False


@dataclass(kw_only=True)
class LinkMeter:
    """Measures a peer's link in each round, and remembers the last ones."""

    count: Callable[[], Mapping[int, Traffic]]
    """The traffic of each connection so far; raises OSError where that cannot be known."""

    pacer: UploadLimit = field(default_factory=lambda: UploadLimit(math.inf))
    """Paces what this peer sends, while its link is full."""

    others_mbit: float = math.inf
    """What all others in the group can receive together, by what they have told; infinity: not all have told it."""

    _ups: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))
    _downs: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_ROUNDS))

    @property
    def link(self) -> Link | None:
        """Medians of the last rounds; a direction that was hardly used counts like the other. None: not measured."""
        up, down = (statistics.median(rates) if rates else None for rates in (self._ups, self._downs))
        up, down = up or down, down or up
        return None if up is None or down is None else Link(up=up, down=down)

    async def watch(self) -> None:
        """Measure a round; cancel it at its end."""
        looks: list[Look] = []
        by_connection: Counter[int] = Counter()
        known: Mapping[int, Traffic] = {}
        received = 0
        with contextlib.suppress(OSError):
            try:
                while True:
                    now = self.count()
                    for connection, traffic in now.items() if looks else ():
                        before = known.get(connection, NONE_YET)
                        by_connection[connection] += traffic.sent - before.sent
                        received += traffic.received - before.received
                    waiting = frozenset(number for number, traffic in now.items() if traffic.waiting >= MIN_WAITING)
                    at = time.monotonic()
                    looks.append(Look(at, by_connection.total(), received, waiting, self.pacer.is_full(at)))
                    known = now
                    await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                self.note_round(looks, by_connection)

    def note_round(self, looks: Sequence[Look], sent: Mapping[int, int]) -> None:
        """Take what was seen in a round; `sent`: bytes by connection."""
        least = max(1.0, MIN_OF_MEAN * sum(sent.values()) / max(1, len(sent)))
        used = {connection for connection, number in sent.items() if number >= least}
        for rates, rate in zip((self._ups, self._downs), measured(looks, used, self.others_mbit), strict=True):
            if rate is not None:
                rates.append(rate)
        link, is_full = self.link, _factor(looks, used, self.others_mbit) != HEADROOM
        self.pacer.change(PACE * link.up if link is not None and is_full else math.inf)
