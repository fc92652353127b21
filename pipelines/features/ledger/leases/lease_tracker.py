"""A peer's book of its lease: what it may read, what it reads, and what came of it. No network.

A span is read, and then in a gradient, of which `RoundTracker` knows; if that is lost, it is read again.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from pipelines.core.gradients.epoch_listener import EpochListener
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.span_source import WholeDataset
from pipelines.core.run.spans import Block, Intervals, Span, by_block, merged_spans
from pipelines.core.run.task import NamedBatch
from pipelines.features.ledger.batch_gradients import BatchGradient, newest_signed
from pipelines.features.ledger.gradient_sketch import GradientSketcher
from pipelines.features.ledger.leases.round_tracker import RoundTracker
from pipelines.features.ledger.records import MOST_GRADIENT_SPANS, MOST_GRADIENTS, MOST_SPANS_REPORTED

SECONDS_BETWEEN_LOOKS = 0.2
MOST_IN_HAND = 2
"""Records that may be read and in no gradient although nothing is left to read: the rest of a document, for example."""

SECONDS_BETWEEN_LEASES = 2.0
"""How long a peer that has read its lease waits for more."""


class LeaseTracker(EpochListener):
    """What a peer may train on, is training on, and has trained on. Used by several threads.

    A peer that has trained on its whole lease goes on through an order of its own after a moment, until it hears of a
    lease again: who does not train does not come to rounds, either. So does one that has heard of no lease for
    `patience_seconds`. In that order peers do not all read the same.
    """

    def __init__(
        self,
        own_order: BlockOrder,
        clock: Callable[[], float],
        patience_seconds: float,
        *,
        waits_first: bool = True,
        sketcher: GradientSketcher | None = None,
    ) -> None:
        """`waits_first`: whether there may be a lease at all; otherwise the own order is all there is.

        `sketcher` makes what is signed of a gradient; None: nobody could compute it again.
        """
        self._sketcher = sketcher
        self._own, self._clock = WholeDataset(own_order), clock
        self._busy_at = clock()
        """When this peer last got something of its lease, or computed a gradient."""

        self._largest_batch = 0
        self._patience = patience_seconds if waits_first else 0.0
        self._changed = threading.Condition()
        self._lease: dict[Block, Intervals] = {}
        self._in_hand: dict[Block, Intervals] = {}
        """Read, and perhaps in gradients; nothing has come of it yet."""

        self._goes_on_alone = False
        """Whether it reads in its own order, and has heard of no lease since then."""

        self._rounds = RoundTracker()
        self._pass_number = 0
        self._is_closed = False

    def renew(self, lease: Sequence[Span], booked_epoch: int) -> None:
        """Take over what the anchor says: everything on this peer's lease, and up to which epoch it has booked."""
        with self._changed:
            if self._patience > SECONDS_BETWEEN_LEASES:  # the first word
                self._busy_at, self._patience = self._clock(), SECONDS_BETWEEN_LEASES
            self._lease, self._goes_on_alone = by_block(lease), False
            self._pass_number = max([self._pass_number, *(span.pass_number for span in lease)])
            self._rounds.forget_until(booked_epoch)
            self._changed.notify_all()

    def next_span(self, *, is_needed: bool) -> Span | None:
        """See `SpanSource`."""
        with self._changed:
            span = next(self._free(), None)
            if span is not None:
                self._busy_at = self._clock()
            elif is_needed and (self._goes_on_alone or self._is_idle()):
                # In an order of its own it is on a way of its own through the pass that all are in.
                span = self._own.next_span()._replace(pass_number=self._pass_number)
                self._goes_on_alone = True
            if span is not None:
                self._in_hand.setdefault(span.block, Intervals()).add(span.interval)
            return span

    def _is_idle(self) -> bool:
        """Whether what was read ahead is used up, but the rest of a batch, and this peer waits for more."""
        num_ahead = sum(map(len, self._in_hand.values())) - sum(batch.num_records for batch in self._rounds)
        return (
            num_ahead <= max(MOST_IN_HAND, 2 * self._largest_batch) and self._clock() >= self._busy_at + self._patience
        )

    def _free(self) -> Iterator[Span]:
        taken = by_block(self._rounds.averaged_spans)
        for block, held in sorted(self._lease.items()):
            for interval in held:
                left = Intervals([interval])
                for others in (self._in_hand, taken):
                    for other in others.get(block, ()):
                        left.remove(other)
                for part in left:
                    yield Span(*block, *part)

    def wait(self) -> bool:
        """Wait a moment for a lease; return whether there may still come one."""
        with self._changed:
            return not self._is_closed and (self._changed.wait(SECONDS_BETWEEN_LOOKS) or not self._is_closed)

    def close(self) -> None:
        """End the reading: there comes nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def num_free(self) -> int:
        """Records on the lease that nobody reads yet."""
        with self._changed:
            return sum(span.num_records for span in self._free())

    def gradient_counted(
        self, batch: NamedBatch, gradients: Sequence[torch.Tensor | None], num_samples: int, epoch: int
    ) -> None:
        """See `EpochListener`, as for all that follows."""
        sketch = None
        if self._sketcher is not None and batch.can_be_read_again:
            sketch = self._sketcher.sketch(gradients, num_samples)
        self.gather(BatchGradient(model_epoch=epoch, spans=batch.spans, counts=batch.counts, sketch=sketch))

    def gather(self, batch: BatchGradient) -> None:
        """Note the gradient of a batch, which counts."""
        with self._changed:
            self._rounds.gather(batch)
            self._busy_at = self._clock()
            self._largest_batch = max(self._largest_batch, batch.num_records)

    def drop(self, spans: Iterable[Span]) -> None:
        """Note that nothing came of these records: they are read again, if they are still on the lease."""
        with self._changed:
            for span in spans:
                self._let_go(span)
            self._changed.notify_all()

    def gradient_dropped(self, batch: NamedBatch) -> None:
        """Its records are read again."""
        self.drop(batch.spans)

    def round_began(self) -> None:
        """The gathered gradients go into a round."""
        with self._changed:
            self._rounds.begin_round()

    def gradients_kept(self) -> None:
        """Nobody has averaged the gradients of the round."""
        with self._changed:
            self._rounds.take_back()

    def round_lost(self) -> None:
        """The gradients of the round are lost: their records are read again."""
        with self._changed:
            self.drop(span for batch in self._rounds.lose_round() for span in batch.spans)

    def gradients_lost(self) -> None:
        """All gradients are lost: their records are read again."""
        with self._changed:
            self.drop(span for batch in self._rounds.lose_all() for span in batch.spans)

    def round_averaged(self, epoch: int) -> None:
        """A round has averaged its gradients; `epoch` is that of the state after its step."""
        with self._changed:
            self.drop(span for batch in self._rounds.average(epoch) for span in batch.spans)

    def report(self) -> dict[int, list[Span]]:
        """What was averaged and is not booked yet, by epoch: as much of the newest as a record holds."""
        with self._changed:
            found: dict[int, list[Span]] = {}
            for epoch in sorted(self._rounds.averaged, reverse=True):
                spans = merged_spans(span for batch in self._rounds.averaged[epoch] for span in batch.spans)
                if sum(map(len, found.values())) + len(spans) > MOST_SPANS_REPORTED:
                    break
                found[epoch] = spans
            return dict(sorted(found.items()))

    def gradients(self) -> dict[int, list[BatchGradient]]:
        """What is signed of the gradients of these records, by epoch: as many as a record holds."""
        with self._changed:
            return newest_signed(self._rounds.recent, MOST_GRADIENTS, MOST_GRADIENT_SPANS)

    def _let_go(self, span: Span) -> None:
        if (held := self._in_hand.get(span.block)) is not None:
            held.remove(span.interval)
            if not held:
                del self._in_hand[span.block]
