"""The names of batches together with what their gradients were: a peer signs them, and anybody can compute them again.

Batches that follow each other and take equally many records of each of the same spans have one name together: the
spans, and the number of batches. Their sketch is that of the sum of their gradients.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.core.run.spans import Span, span_of
from pipelines.features.ledger.gradient_sketch import Sketch

MOST_BATCHES_JOINED = 64
"""With one name: whoever checks the gradient computes all of them."""


@dataclass(frozen=True, kw_only=True)
class BatchGradient:
    """Some batches, and the sum of their gradients, each weighted by its samples."""

    model_epoch: int
    """Epoch of the parameters with which it was computed."""

    spans: tuple[Span, ...]
    """The records; held-out ones, which are skipped, are among them."""

    counts: tuple[int, ...] = ()
    """Of each span, the records that one batch takes."""

    num_batches: int = 1
    sketch: Sketch | None = None
    """None: it cannot be computed again."""

    @property
    def num_records(self) -> int:
        """Records of all spans."""
        return sum(span.num_records for span in self.spans)

    def joined(self, later: "BatchGradient") -> "BatchGradient | None":
        """This one and the batches after it under one name; None: they do not fit together."""
        number = self.num_batches + later.num_batches
        follows = all(
            one.block == other.block and one.stop == other.start
            for one, other in zip(self.spans, later.spans, strict=False)
        )
        is_alike = self.model_epoch == later.model_epoch and self.counts == later.counts and all(self.counts)
        if self.sketch is None or later.sketch is None or not (is_alike and follows) or number > MOST_BATCHES_JOINED:
            return None
        spans = tuple(
            span_of(one.block, (one.start, other.stop)) for one, other in zip(self.spans, later.spans, strict=True)
        )
        return replace(self, spans=spans, num_batches=number, sketch=tuple(np.add(self.sketch, later.sketch).tolist()))


def join_batches(gradients: Iterable[BatchGradient]) -> list[BatchGradient]:
    """The same batches with as few names as possible."""
    found: list[BatchGradient] = []
    for gradient in gradients:
        if found and (both := found[-1].joined(gradient)) is not None:
            found[-1] = both
        else:
            found.append(gradient)
    return found


def newest_signed(
    averaged: Mapping[int, Sequence[BatchGradient]], most_names: int, most_spans: int
) -> dict[int, list[BatchGradient]]:
    """By epoch, what a peer signs of its batches: those of the newest epochs first, as many as a record holds."""
    found: dict[int, list[BatchGradient]] = {}
    for epoch in sorted(averaged, reverse=True):
        for gradient in join_batches(gradient for gradient in averaged[epoch] if gradient.sketch is not None):
            most_names, most_spans = most_names - 1, most_spans - len(gradient.spans)
            if most_names < 0 or most_spans < 0:
                return dict(sorted(found.items()))
            found.setdefault(epoch, []).append(gradient)
    return dict(sorted(found.items()))
