"""Spans: some records of one block of the dataset, in one pass. A batch has their names.

A block is one row group of one shard. Its records are read in an order of their own for each pass (`record_order`), and
a span counts in that order.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pipelines.core.run.training_run import stable_seed

Interval = tuple[int, int]
"""First record, and the one behind the last."""


class Block(NamedTuple):
    """One row group of one shard in one pass over the dataset."""

    pass_number: int
    shard: int
    """Place among the shards in the order of their names."""

    group: int


class Span(NamedTuple):
    """Records of a block: those from `start` to just before `stop` in the block's order."""

    pass_number: int
    shard: int
    group: int
    start: int
    stop: int

    @property
    def block(self) -> Block:
        """The block that the records belong to."""
        return Block(self.pass_number, self.shard, self.group)

    @property
    def interval(self) -> Interval:
        """Where they are in the block."""
        return self.start, self.stop

    @property
    def num_records(self) -> int:
        """How many they are."""
        return self.stop - self.start

    @property
    def seed(self) -> int:
        """What everything random about these records follows from."""
        return stable_seed(*self)


def span_of(block: Block, interval: Interval) -> Span:
    """The span of a block's interval."""
    return Span(*block, *interval)


def record_order(block: Block, num_records: int, seed: int) -> np.ndarray:
    """The order in which a block's rows are read, a permutation (num_records,) int64; `seed` is the run's."""
    return np.random.Generator(np.random.PCG64(stable_seed(seed, "records", *block))).permutation(num_records)


class Intervals:
    """A set of whole numbers as few intervals, sorted and apart."""

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._held: list[Interval] = []
        for interval in intervals:
            self.add(interval)

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._held)

    def __bool__(self) -> bool:
        return bool(self._held)

    def __len__(self) -> int:
        """The numbers in the set."""
        return sum(stop - start for start, stop in self._held)

    def add(self, interval: Interval) -> None:
        """Put an interval's numbers into the set."""
        start, stop = interval
        if start >= stop:
            return
        apart = [held for held in self._held if held[1] < start or stop < held[0]]
        joined = [held for held in self._held if not (held[1] < start or stop < held[0])]
        bounds = [*joined, interval]
        self._held = sorted([*apart, (min(held[0] for held in bounds), max(held[1] for held in bounds))])

    def remove(self, interval: Interval) -> None:
        """Take an interval's numbers out of the set."""
        start, stop = interval
        if start < stop:
            parts = [
                part for held in self._held for part in ((held[0], min(held[1], start)), (max(held[0], stop), held[1]))
            ]
            self._held = [part for part in parts if part[0] < part[1]]

    def within(self, interval: Interval) -> list[Interval]:
        """The parts of an interval that are in the set."""
        start, stop = interval
        parts = [(max(held[0], start), min(held[1], stop)) for held in self._held]
        return [part for part in parts if part[0] < part[1]]

    def outside(self, interval: Interval) -> list[Interval]:
        """The parts of an interval that are not in the set."""
        others = Intervals([interval])
        for held in self._held:
            others.remove(held)
        return list(others)


def by_block(spans: Iterable[Span]) -> dict[Block, Intervals]:
    """The records of each block among these, in the order in which the blocks occur."""
    held: dict[Block, Intervals] = {}
    for span in spans:
        held.setdefault(span.block, Intervals()).add(span.interval)
    return held


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """The same records as few spans."""
    return [span_of(block, interval) for block, intervals in by_block(spans).items() for interval in intervals]
