"""One pass over the dataset as the ledger has it: what is free, what is out on lease, what is done. Pure."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Block, Interval, Intervals, Span, span_of

MOST_OPENED_EARLY = 4096
"""Blocks trained on before their turn that a pass keeps account of."""


@dataclass(kw_only=True)
class OpenBlock:
    """A block of which something is not done."""

    size: int
    free: Intervals
    """On nobody's lease, and not done."""

    done: Intervals = field(default_factory=Intervals)

    reader: str | None = None
    """The peer that has the block, and gets more of it first: it is read as a whole. None: nobody who is there."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return len(self.done) >= self.size


class PassTracker:
    """Hands the blocks of one pass out in their order, each record to one lease at a time."""

    def __init__(self, order: BlockOrder, pass_number: int) -> None:
        self._order, self.pass_number = order, pass_number
        self._window = -1
        """The number of the window whose blocks have their turn."""

        self._num_in_window = 0
        self._upcoming: list[tuple[Block, int]] = []
        """Its blocks that have not had it, with their sizes, the next one last."""

        self.open: dict[Block, OpenBlock] = {}
        self.early: set[Block] = set()
        """Blocks opened before their turn; it is passed over."""

        self.num_done = 0
        """Records done in this pass."""

    @property
    def is_done(self) -> bool:
        """Whether every record was trained on."""
        return not self._upcoming and self._window + 1 >= self._order.num_windows and not self.open

    def take(self, num_records: int, reader: str) -> Iterator[Span]:
        """Yield free spans of about so many records in all; they are not free any more.

        First of the blocks that the reader has, then of those that nobody has any more, then new ones, and others'
        only if there are no new ones: for each reader of a block it is sent once more.
        """
        if num_records <= 0:
            return
        own: list[tuple[Block, OpenBlock]] = []
        nobodys: list[tuple[Block, OpenBlock]] = []
        others: list[tuple[Block, OpenBlock]] = []
        for block, held in self.open.items():
            if held.free:
                (own if held.reader == reader else nobodys if held.reader is None else others).append((block, held))
        for block, held in itertools.chain(own, nobodys, iter(self._open_next, None), others):
            if held.free and held.reader is None:
                held.reader = reader
            for interval in list(held.free):
                yield span_of(block, self._cut(held, interval, num_records))
                num_records -= interval[1] - interval[0]
                if num_records <= 0:
                    return

    def _cut(self, held: OpenBlock, interval: Interval, num_records: int) -> Interval:
        start, stop = interval[0], min(interval[1], interval[0] + max(1, num_records))
        held.free.remove((start, stop))
        return start, stop

    def _open_next(self) -> tuple[Block, OpenBlock] | None:
        while self._upcoming or self._window + 1 < self._order.num_windows:
            if not self._upcoming:
                self._begin_window(self._window + 1, 0)
                continue
            block, size = self._upcoming.pop()
            if block not in self.early:
                self.open[block] = OpenBlock(size=size, free=Intervals([(0, size)]))
                return block, self.open[block]
            self.early.remove(block)
        return None

    def _begin_window(self, number: int, num_taken: int) -> None:
        self._window, self._upcoming = number, self._order.window(self.pass_number, number)[::-1]
        self._num_in_window = len(self._upcoming)
        del self._upcoming[self._num_in_window - num_taken :]

    def forget(self, reader: str) -> None:
        """Let others have the blocks of a peer that has left."""
        for held in self.open.values():
            held.reader = None if held.reader == reader else held.reader

    def give_back(self, spans: Iterable[Span]) -> None:
        """Make spans free again, but what is done."""
        for span in spans:
            if (held := self.open.get(span.block)) is not None:
                for part in held.done.outside(span.interval):
                    held.free.add(part)

    def finish(self, span: Span) -> int:
        """Record that a span was trained on; return how many of its records had been done before."""
        held = self.open.get(span.block)
        if held is None:
            return span.num_records
        repeated = sum(stop - start for start, stop in held.done.within(span.interval))
        held.free.remove(span.interval)
        held.done.add(span.interval)
        self.num_done += span.num_records - repeated
        if held.is_done:
            del self.open[span.block]
        return repeated

    def has(self, span: Span) -> bool:
        """Whether there are such records."""
        if not (0 <= span.shard < self._order.num_shards and 0 <= span.start < span.stop):
            return False
        sizes = self._order.sizes(span.shard)
        return 0 <= span.group < len(sizes) and span.stop <= sizes[span.group]

    def opens(self, span: Span) -> bool:
        """Whether the block of a span, of which `has` is true, is open: at its turn, or earlier if there is room."""
        is_done = span.block in self.early or self._had_its_turn(span.block)
        if span.block not in self.open and len(self.early) < MOST_OPENED_EARLY and not is_done:
            size = self._order.sizes(span.shard)[span.group]
            self.early.add(span.block)
            self.open[span.block] = OpenBlock(size=size, free=Intervals([(0, size)]))
        return span.block in self.open

    def _had_its_turn(self, block: Block) -> bool:
        window = self._order.window_of(block)
        if window != self._window:
            return window < self._window
        return block not in {upcoming for upcoming, _ in self._upcoming}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, but what is out on lease: that is free in it."""
        return dict(
            pass_number=self.pass_number,
            window=self._window,
            num_taken=self._num_in_window - len(self._upcoming),
            num_done=self.num_done,
            early=[list(block) for block in sorted(self.early)],
            open=[[*block, held.size, list(held.done)] for block, held in self.open.items()],
        )

    @classmethod
    def from_json(cls, order: BlockOrder, values: dict[str, Any]) -> Self:
        """The book that `to_json` gave, with nothing on lease."""
        tracker = cls(order, int(values["pass_number"]))
        tracker.num_done = int(values["num_done"])
        if values["window"] >= 0:
            tracker._begin_window(int(values["window"]), int(values["num_taken"]))
        tracker.early = {Block(*map(int, block)) for block in values["early"]}
        for *block, size, done in values["open"]:
            finished = Intervals((int(start), int(stop)) for start, stop in done)
            free = Intervals(finished.outside((0, int(size))))
            tracker.open[Block(*map(int, block))] = OpenBlock(size=int(size), free=free, done=finished)
        return tracker
