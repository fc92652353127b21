"""Keeps a peer's lease up to date: reads what the run's anchors lease to it, and tells them what came of it."""

import logging
import threading
import time
from types import TracebackType
from typing import Self

from pipelines.core.state.anchors import AnchorKeys
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.ledger.leases.lease_tracker import LeaseTracker
from pipelines.features.ledger.records import GRADIENTS, LEASES, TRAINED
from pipelines.features.ledger.statements import gradients_record, lease_in, lease_key, trained_record, valid_leases

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS, SECONDS_IF_HUNGRY = 2.0, 0.5
"""Between two readings of the lease; while nothing of it is left to read, they are more frequent."""

REPORT_SECONDS = 30.0
"""Lifetime of a report, renewed after a third of it, also without news: who reports is leased something."""

SECONDS_TO_END = 10.0


class LeaseWatch:
    """A thread that goes between a peer's book and the swarm's records; a context manager."""

    def __init__(
        self, tracker: LeaseTracker, records: SwarmRecords, swarm_id: str, name: str, anchor_keys: AnchorKeys
    ) -> None:
        self._tracker, self._records, self._swarm_id, self._name = tracker, records, swarm_id, name
        self._keys, self._over = anchor_keys, threading.Event()
        self._reported: object = {}
        self._reported_at = float("-inf")
        self._seen_since: float | None = None
        self._is_named = False
        self._heard_time = float("-inf")
        """When the newest statement was made that this peer has taken over."""

        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def begin(self) -> None:
        """Ask for a lease: this peer is about to train."""
        self._seen_since = self._records.now
        self._report()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(SECONDS_TO_END)

    def _run(self) -> None:
        looked_at = float("-inf")
        while not self._over.is_set():
            try:
                self._report()
                if time.monotonic() > looked_at + SECONDS_BETWEEN_LOOKS or self._tracker.num_free == 0:
                    self._renew()
                    looked_at = time.monotonic()
            except Exception as error:  # the peer trains on without a lease
                logger.debug("Leases cannot be read: %r", error)
            self._over.wait(SECONDS_IF_HUNGRY)
        self._report()

    def _renew(self) -> None:
        number, now = lease_key(self._name), self._records.now
        keys = list(self._keys())
        if keys:
            statements = valid_leases(self._records.read_unchecked(LEASES, number), number, self._swarm_id, keys, now)
            fresh = [statements[key] for key in keys if key in statements]
            # The first anchor that is alive decides, as it does about the state. What it said before this process could
            # be seen to train was of a lease that may have ended since then.
            is_news = fresh and fresh[0].time > self._heard_time
            if is_news and self._seen_since is not None and fresh[0].time > self._seen_since:
                self._heard_time = fresh[0].time
                found = lease_in(fresh[0], self._name)
                if found is not None or self._is_named:
                    self._tracker.renew(*(found or ([], -1)))
                self._is_named = found is not None

    def _report(self) -> None:
        report, now = self._tracker.report(), time.monotonic()
        if self._seen_since is not None and (report != self._reported or now > self._reported_at + REPORT_SECONDS / 3):
            self._records.publish(GRADIENTS, gradients_record(self._tracker.gradients()), REPORT_SECONDS)
            self._records.publish(TRAINED, trained_record(report), REPORT_SECONDS)
            self._reported, self._reported_at = report, now
