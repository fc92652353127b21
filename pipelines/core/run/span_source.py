"""What there is to read: where nobody else reads, every block of every pass, in the global order."""

from collections.abc import Iterator
from typing import Protocol

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Span


class SpanSource(Protocol):
    """Says which records to read next."""

    def next_span(self, *, is_needed: bool) -> Span | None:
        """Return the next span; None: there is nothing to read now. `is_needed`: whether nothing else is being read."""

    def wait(self) -> bool:
        """Wait a moment for something to read; return whether there may still come something."""


class PassAfterPass:
    """Gives the spans of a source, and those of another pass only when nothing else is being read."""

    def __init__(self, source: SpanSource) -> None:
        self._source = source
        self._pass_number: int | None = None
        self._waiting: Span | None = None

    def next_span(self, *, is_needed: bool) -> Span | None:
        """See `SpanSource`."""
        span, self._waiting = self._waiting or self._source.next_span(is_needed=is_needed), None
        if span is not None and span.pass_number != self._pass_number:
            if not is_needed:
                self._waiting = span
                return None
            self._pass_number = span.pass_number
        return span

    def wait(self) -> bool:
        """See `SpanSource`."""
        return self._source.wait()


class WholeDataset:
    """All spans of an order, pass after pass; see `SpanSource`."""

    def __init__(self, order: BlockOrder, first_pass: int = 0) -> None:
        self._spans = self._all(order, first_pass)

    def _all(self, order: BlockOrder, number: int) -> Iterator[Span]:
        while True:
            for window in range(order.num_windows):
                yield from (Span(*block, 0, size) for block, size in order.window(number, window))
            number += 1

    def next_span(self, *, is_needed: bool = True) -> Span:
        """See `SpanSource`: there always is one."""
        return next(self._spans)

    def wait(self) -> bool:
        """See `SpanSource`."""
        return True
