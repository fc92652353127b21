"""Keeps the run's ledger on an auxiliary peer: books what peers have trained on, and leases the next records.

All anchors keep books; the one that decides which state the run has leases. What was booked before a restart is never
leased again, since the state is on disk before the swarm hears of a lease.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Span
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.state.anchors import SECONDS_FRESH
from pipelines.core.swarm.peer_records import Reporter
from pipelines.core.swarm.records import SwarmRecords
from pipelines.features.ledger.gradient_files import SignedGradient, newest, read_gradients, write_gradients
from pipelines.features.ledger.ledger import Ledger, LedgerOptions
from pipelines.features.ledger.ledger_files import (
    STATE_FILE,
    Booking,
    read_bookings,
    read_state,
    write_bookings,
    write_state,
)
from pipelines.features.ledger.records import GRADIENTS, LEASES, TRAINED, GradientRecord, TrainedRecord
from pipelines.features.ledger.statements import signed_leases, spans_in
from pipelines.features.publishing.metrics.credit.claims import LATE_EPOCHS, RoundLog

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS, MOST_SECONDS_BETWEEN_LOOKS, SECONDS_TO_END = 1.0, 60.0, 10.0
RENEWAL_SECONDS = 5.0
LEAST_HORIZON_SECONDS = 30.0
LEAST_EXPIRY_SECONDS = 120.0
EPOCHS_TO_EXPIRE = 6.0


def ledger_options(run: TrainingRun, sample_weight: float) -> LedgerOptions:
    """How much this run leases at once, and for how long; `sample_weight` is that of the task.

    A record is taken for a sample, which documents of a text are not; but a lease follows what its peer does.
    """
    horizon = max(LEAST_HORIZON_SECONDS, 4 * run.matchmaking_seconds, run.progress_expiration_seconds)
    return LedgerOptions(
        epoch_records=max(1, round(run.samples_per_epoch / sample_weight)),
        horizon_seconds=horizon,
        expiry_seconds=max(LEAST_EXPIRY_SECONDS, EPOCHS_TO_EXPIRE * run.averaging_timeout_seconds),
    )


class LedgerKeeper:
    """Books and leases in a thread of its own, which reads the swarm's records; a context manager.

    What is published lies in `folder`; see `RunMetrics.companion`.
    """

    def __init__(
        self,
        run: TrainingRun,
        order: BlockOrder,
        options: LedgerOptions,
        folder: Path,
        records: SwarmRecords,
        rounds: RoundLog,
        key: PublisherKey,
        may_lease: Callable[[], bool],
    ) -> None:
        """`may_lease`: whether this peer is the anchor that decides. Raises ValueError for a damaged ledger."""
        self._run, self._order, self._options, self._folder = run, order, options, folder
        self._records, self._rounds, self._key, self._may_lease = records, rounds, key, may_lease
        folder.mkdir(parents=True, exist_ok=True)
        self._lock, self._over = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._run_until_over, name="ledger", daemon=True)
        self.bookings = read_bookings(folder)
        self._booked = {(booking.name, booking.epoch) for booking in self.bookings}
        self.gradients = set(read_gradients(folder))
        self._written_epoch = max((booking.epoch for booking in self.bookings), default=0)
        state = read_state(folder / STATE_FILE)
        self.ledger, self._written_at = Ledger(order, options), 0.0
        if state is not None:
            self._open(state)
        self._published_at = float("-inf")
        self._published: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(SECONDS_TO_END)

    def _open(self, state: Mapping[str, Any]) -> None:
        if state.get("generation") != self._run.generation:  # after a rollback other peers count their epochs anew
            state, self.gradients = {**state, "accounts": []}, set()
        self.ledger = Ledger.from_json(self._order, self._options, state, time.monotonic())
        self._written_at = float(state.get("time", 0.0))

    def _run_until_over(self) -> None:
        pause = SECONDS_BETWEEN_LOOKS
        while not self._over.wait(pause):
            try:
                self.look()
                pause = SECONDS_BETWEEN_LOOKS
            except Exception as error:  # peers go on with what they have
                pause = min(MOST_SECONDS_BETWEEN_LOOKS, 4 * pause)
                logger.warning("The ledger could not be kept, next try in %.0f s: %r", pause, error)

    def look(self) -> None:
        """Read what peers have trained on, book it, and lease more."""
        trained, now = self._records.read(TRAINED), time.monotonic()
        reporters = self._records.reporters(trained)
        last_epoch = max((entry.epoch for record in trained.values() for entry in record.epochs), default=0)
        with self._lock:
            before = self.ledger.to_json()
            self.ledger.meet({reporter.sender: reporter.user for reporter in reporters.values()}, now)
            for owner in trained.keys() & reporters.keys():
                self._book(reporters[owner], trained[owner], now, last_epoch, is_alone=len(reporters) == 1)
            self._keep_gradients(reporters)
            self.ledger.expire(now)
            if self._may_lease():
                self.ledger.grant(now)
            if self.ledger.to_json() != before:
                self._write_state()
            if self._may_lease():
                self._publish(now)

    def _book(self, reporter: Reporter, trained: TrainedRecord, now: float, last_epoch: int, *, is_alone: bool) -> None:
        for entry in sorted(trained.epochs, key=lambda entry: entry.epoch):
            # Who trains alone has rounds with nobody; of others this anchor has heard the values in the average.
            if is_alone or self._rounds.names(reporter.sender, entry.epoch):
                booked = self.ledger.book(reporter.sender, entry.epoch, spans_in(entry.spans), now)
                self.bookings += [Booking(entry.epoch, span, reporter.sender, reporter.user) for span in booked]
                self._booked |= {(reporter.sender, entry.epoch)} if booked else set()
                self._written_epoch = min(self._written_epoch, entry.epoch)
            elif entry.epoch + LATE_EPOCHS > last_epoch:
                return  # it may still come to know that round

    def _keep_gradients(self, reporters: Mapping[bytes, Reporter]) -> None:
        """Take note of what peers signed of gradients whose records are booked."""
        for owner, record in self._records.read(GRADIENTS).items():
            if (reporter := reporters.get(owner)) is not None:
                self.gradients |= {
                    _signed_gradient(gradient, reporter)
                    for gradient in record.gradients
                    if (reporter.sender, gradient.epoch) in self._booked
                }

    def _publish(self, now: float) -> None:
        statements = signed_leases(self._key, self._run.swarm_id, self.ledger, self._records.now)
        is_due = now > self._published_at + RENEWAL_SECONDS
        for number, statement in statements.items():
            if is_due or self._published.get(number) != statement.leases:
                self._records.publish(LEASES, statement, SECONDS_FRESH, number=number)
        self._published = {number: statement.leases for number, statement in statements.items()}
        self._published_at = now if is_due else self._published_at

    def _write_state(self) -> None:
        self._written_at = time.time()
        facts = dict(time=self._written_at, generation=self._run.generation, pass_records=self._order.num_records)
        write_state(self._folder / STATE_FILE, facts | self.ledger.to_json())

    def write(self) -> None:
        """See `Companion`."""
        with self._lock:
            write_bookings(self._folder, self.bookings, since=self._written_epoch)
            self._written_epoch = max((booking.epoch for booking in self.bookings), default=0)
            write_gradients(self._folder, kept := newest(self.gradients))
            self.gradients = set(kept)
            self._write_state()

    def take_over(self, folder: Path) -> None:
        """See `Companion`: the newer ledger counts, and all bookings. A damaged one is left alone."""
        try:
            state, bookings, gradients = read_state(folder / STATE_FILE), read_bookings(folder), read_gradients(folder)
            with self._lock:
                known = set(self.bookings)
                self.bookings = sorted(known | set(bookings))
                self._booked |= {(booking.name, booking.epoch) for booking in bookings}
                self._written_epoch = 0 if set(bookings) - known else self._written_epoch
                if state is not None and state.get("generation") == self._run.generation:
                    self.gradients |= set(gradients)
                if state is not None and float(state.get("time", 0.0)) > self._written_at:
                    self._open(state)
        except ValueError as error:
            logger.warning("The ledger that was published is not continued: %s", error)


def _signed_gradient(record: GradientRecord, reporter: Reporter) -> SignedGradient:
    return SignedGradient(
        epoch=record.epoch,
        name=reporter.sender,
        spans=tuple(Span(*span) for span in record.spans),
        num_batches=record.num_batches,
        model_epoch=record.model_epoch,
        sketch=tuple(record.sketch),
        user=reporter.user,
    )
