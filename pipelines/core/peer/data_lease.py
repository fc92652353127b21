"""Records that a peer is told to train on: what a training peer asks of the feature that tells it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pipelines.core.gradients.epoch_listener import EpochListener
from pipelines.core.run.span_source import SpanSource
from pipelines.core.run.task import TrainingTask
from pipelines.core.state.anchors import AnchorKeys
from pipelines.core.swarm.records import SwarmRecords


@dataclass(frozen=True, kw_only=True)
class DataLease:
    """What a peer may read, and who learns what comes of it."""

    spans: SpanSource
    listener: EpochListener
    close: Callable[[], None]
    """Ends the reading: nothing more is given."""

    watch: Callable[[SwarmRecords, str], AbstractContextManager[Callable[[], None]]]
    """Keeps the lease up to date for the duration of a block, for the peer of this name; see `sender_name`. The value
    is to be called when the peer is about to train."""


OpenLease = Callable[[TrainingTask, int, AnchorKeys], DataLease | None]
"""Returns the lease of a task's data, with the seed of the order in which the peer reads without one; None: none."""


def no_lease(_task: TrainingTask, _seed: int, _anchor_keys: AnchorKeys) -> None:
    """Lease nothing: each peer reads all of the data in an order of its own."""
