"""The lease of a training peer: its book, and the thread that keeps it up to date."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

from pipelines.core.peer.data_lease import DataLease
from pipelines.core.run.task import TrainingTask
from pipelines.core.state.anchors import AnchorKeys
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.ledger.gradient_sketch import GradientSketcher
from pipelines.features.ledger.leases.lease_tracker import LeaseTracker
from pipelines.features.ledger.leases.lease_watch import LeaseWatch

LEAST_PATIENCE_SECONDS = 20.0
"""How long a peer waits for a lease at least before it reads in an order of its own."""


def open_lease(task: TrainingTask, seed: int, anchor_keys: AnchorKeys) -> DataLease | None:
    """Return the lease of the records that the run's anchors lease; None: this task's data is not leased.

    `seed` is that of the order in which the peer reads while it has no lease.
    """
    order = task.block_order("without a lease", seed)
    if order is None:
        return None
    patience = max(LEAST_PATIENCE_SECONDS, 2 * task.run.progress_expiration_seconds)
    # With local steps every peer has parameters of its own, which nobody else knows.
    sketcher = GradientSketcher(task.run.run_id) if task.run.local_steps == 1 else None
    tracker = LeaseTracker(order, time.monotonic, patience, waits_first=bool(anchor_keys()), sketcher=sketcher)
    watch = partial(_watched, tracker, task.run.swarm_id, anchor_keys)
    return DataLease(spans=tracker, listener=tracker, close=tracker.close, watch=watch)


@contextlib.contextmanager
def _watched(
    tracker: LeaseTracker, swarm_id: str, anchor_keys: AnchorKeys, records: SwarmRecords, name: str
) -> Iterator[Callable[[], None]]:
    with LeaseWatch(tracker, records, swarm_id, name, anchor_keys) as watch:
        yield watch.begin
