"""The auxiliary peer: follows the run without training, keeps its state, serves newcomers, publishes checkpoints.

It listens to the rounds and steps by itself, see `anchor`. hivemind's `auxiliary=True` optimizer takes part in rounds
as a full peer and refuses to serve its state, so that a run whose trainers all die would be lost.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.dht_gate import SwarmDHT
from pipelines.core.epoch.assembly import make_optimizer
from pipelines.core.state.checkpoint_tensors import RunState, load_training_state
from pipelines.core.swarm.node import visible_addresses
from pipelines.core.swarm.peer_records import AuxiliaryStatus
from pipelines.core.swarm.records import SwarmRecords
from pipelines.core.swarm_time import SWARM_TIME
from pipelines.features.all_records import ALL_RECORDS
from pipelines.features.anchors.anchor import Anchor, Evaluate
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.features.publishing.auxiliary.evaluating.checkpoint_evaluator import (
    CheckpointEvaluator,
    EvaluationOutcome,
)
from pipelines.features.publishing.auxiliary.ledger_keeper import LedgerKeeper, ledger_options
from pipelines.features.publishing.auxiliary.publishing.checkpoint_writing import write_checkpoint
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool
from pipelines.features.publishing.auxiliary.publishing.publisher_election import (
    Candidacy,
    candidacy,
    elect,
    proven_keys,
)
from pipelines.features.publishing.auxiliary.side_threads import PublishingThread, RoundThread
from pipelines.features.publishing.auxiliary.snapshot_tasks import SnapshotWorker
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary, should_publish
from pipelines.features.publishing.metrics.stalls import StallNews, StallWatch
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.key_list import PUBLISHER

logger = logging.getLogger(__name__)

DISK_RETRY_SECONDS = 20.0
SECONDS_TO_HEAR = 10.0
"""How long an auxiliary peer stays for those who train, once the last epoch is published: they wait for an anchor's
signature, or download the state."""

MAX_ADDRESSES = 16


@dataclass(frozen=True, kw_only=True)
class AuxiliaryReport:
    """What the auxiliary peer saw and did in one poll of the swarm."""

    held_epoch: int
    published_epoch: int
    swarm_epoch: int
    num_trainers: int
    summary: EpochSummary | None
    published: str | None
    """Commit of the checkpoint published since the last poll, if any."""

    is_publisher: bool
    """Whether this is the one of the run's auxiliary peers that publishes."""

    is_listed: bool
    """Whether the run's list names this peer's key as a publisher's."""

    num_waiting: int
    """Checkpoints that wait for the Hub."""

    evaluation: EvaluationOutcome | None
    """What came of the evaluation of a checkpoint that has ended since the last poll, if any."""

    evaluating_epoch: int | None
    """Epoch of the checkpoint that is being evaluated, if any."""

    stall: StallNews | None
    """The news that the run has stalled or goes on, in the poll that finds it."""


class AuxiliaryPeer:
    """Follows a run and publishes it. Use as a context manager around `restore` and `follow`."""

    def __init__(
        self,
        task: PublishableTask,
        dht: SwarmDHT,
        publisher: HubPublisher,
        worker: SnapshotWorker,
        *,
        admission: PeerAdmission | None,
        package_version: str,
        options: AuxiliaryOptions,
        evaluate: Callable[[torch.nn.Module], float | None] = lambda _model: None,
        evaluator: CheckpointEvaluator | None = None,
    ) -> None:
        """`evaluate` returns a model's held-out loss, None if it has no data for that; `evaluator`: see there."""
        self.task, self.run, self.publisher, self.metrics = task, task.run, publisher, publisher.metrics
        self.model = task.new_model()
        self.records = SwarmRecords(dht, self.run.swarm_id, admission=admission, kinds=ALL_RECORDS)
        self._dht, self._worker, self._package_version = dht, worker, package_version
        self._options, self._evaluator = options, evaluator
        self._candidacy = candidacy(publisher.key, self.run.swarm_id, self.records.owner)
        self._publishing = PublishingThread(publisher, options.retry_seconds)
        self._addresses = visible_addresses(dht)[:MAX_ADDRESSES]
        self._next_spooling = 0.0
        self._over_since: float | None = None
        self._stalls = StallWatch(point["epoch_seconds"] for point in self.metrics.history())
        self._evaluate: Evaluate = lambda: evaluate(self.model)

    def __enter__(self) -> "AuxiliaryPeer":
        self.records.open()
        key, keys = self.publisher.key, self.publisher.anchor_keys
        self.optimizer = make_optimizer(
            run=self.run,
            dht=self._dht,
            model=self.model,
            records=self.records,
            anchor_keys=keys,
            own_anchor_key=key.public,
            listens=True,
            may_help=self._options.helps_averaging,
            children=self._dht.children,
            verbose=logger.isEnabledFor(logging.DEBUG),
        )
        self.training_state = self.optimizer.state
        self._anchor = Anchor(
            self.optimizer, self.records, key, may_sign=lambda: key.public in keys(), evaluate=self._evaluate
        )
        self._rounds = RoundThread(self._anchor.keep_up)
        self.optimizer.state_transfer.is_to_stop = self._rounds.is_stopping
        self._ledger = self._open_ledger()
        return self

    def _open_ledger(self) -> contextlib.AbstractContextManager:
        """Return the keeper of the ledger; of nothing, if the run's data has no blocks."""
        order = self.task.block_order()
        if order is None:
            return contextlib.nullcontext()
        keeper = LedgerKeeper(
            self.run,
            order,
            ledger_options(self.run, self.task.sample_weight),
            self.metrics.folder,
            self.records,
            self._anchor.rounds,
            self.publisher.key,
            self._decides,
        )
        self.metrics.companion = keeper
        return keeper

    def _decides(self) -> bool:
        """Whether this peer is the anchor that says which state the run has, and what is trained on next."""
        keys = list(self.publisher.anchor_keys())
        before = self.optimizer.state_transfer.look_at_anchors().present
        return self.publisher.key.public in keys and before is None

    def __exit__(self, *exception: object) -> None:
        self.optimizer.shutdown()

    @property
    def held_epoch(self) -> int:
        """Epoch of the state that this peer keeps and serves."""
        return self.training_state.state_epoch

    def restore(self, folder: Path | None) -> int:
        """Load a checkpoint's folder, if there is one, and start serving the state; return its epoch."""
        if folder is not None:
            with self.training_state.lock:
                state = load_training_state(folder, self.model, self.training_state.optimizer)
                self.training_state.set_epoch(state.epoch)
            self.optimizer.begin_epoch()
        self.optimizer.share_state()
        return self.held_epoch

    def announce(self) -> tuple[str, ...]:
        """Publish this peer's key and the addresses of all auxiliary peers on the Hub; return the addresses."""
        self.publisher.look()
        self._elect()
        self.publisher.begin(self.publisher.entry_addresses)
        self._elect()
        self._announce_status()
        return self.publisher.entry_addresses

    def follow(self, stop: threading.Event, poll_seconds: float = 1.0) -> Iterator[AuxiliaryReport]:
        """Poll the swarm until `stop` is set or the finished run has been published, and evaluated if it is to be.

        Whoever trains has some seconds to hear that the last state is signed, and to leave.

        Raises:
            RunRolledBackError: the run has started a new generation.
        """
        with self._publishing, self._rounds, self._ledger:
            while not stop.is_set():
                report = self.look()
                yield report
                if self._may_leave(report):
                    return
                self._publishing.check()
                stop.wait(poll_seconds)

    def _may_leave(self, report: AuxiliaryReport) -> bool:
        if report.published_epoch < self.run.num_epochs or self._is_evaluating:
            return False
        self._over_since = self._over_since or time.monotonic()
        return report.num_trainers == 0 or time.monotonic() > self._over_since + SECONDS_TO_HEAR

    def look(self) -> AuxiliaryReport:
        """Poll the swarm once: record its figures, put due checkpoints in the spool."""
        figures = self.records.metrics()
        reporters = self.records.reporters(figures)
        summary = self.metrics.observe(figures, reporters, self._anchor.rounds, SWARM_TIME(), self.held_epoch)
        self._elect()
        if self.publisher.is_elected:
            self._spool_if_due()
            self._start_snapshot_work()
        self._announce_status()
        progress = self.records.progress()
        return AuxiliaryReport(
            held_epoch=self.held_epoch,
            published_epoch=self.publisher.published_epoch,
            swarm_epoch=max([self.held_epoch, *(record.epoch for record in progress.values())]),
            num_trainers=len(progress),
            summary=summary,
            published=self.publisher.take_last_commit(),
            is_publisher=self.publisher.is_elected,
            is_listed=self.publisher.is_listed,
            num_waiting=len(self.publisher.spool.entries()),
            evaluation=self._evaluator.look() if self._evaluator else None,
            evaluating_epoch=self._evaluator.current_epoch if self._evaluator else None,
            stall=self._look_for_stall(len(progress)),
        )

    def finish(self) -> str | None:
        """Publish the current state and the spool, as far as the Hub allows now; return the last commit, if any.

        What cannot be published stays in the spool, for the next start.
        """
        self._publishing.stop()
        if self.held_epoch >= self.run.num_epochs:
            self._worker.wait()
        if self.publisher.is_elected and self.held_epoch > self._newest_safe_epoch():
            self._spool(self.publisher.spool)
        self.publisher.drain()
        return self.publisher.take_last_commit()

    def _look_for_stall(self, num_trainers: int) -> StallNews | None:
        if self.held_epoch >= self.run.num_epochs:
            return None
        return self._stalls.look(self.held_epoch, num_trainers=num_trainers, now=time.monotonic())

    @property
    def _is_evaluating(self) -> bool:
        return self._evaluator is not None and self._evaluator.is_busy

    def _announce_status(self) -> None:
        status = AuxiliaryStatus(
            held_epoch=self.held_epoch,
            published_epoch=self.publisher.published_epoch,
            addresses=list(self._addresses),
            publisher_key=self._candidacy.public_key,
            publisher_proof=self._candidacy.proof,
        )
        self.records.publish_auxiliary(status, lifetime_seconds=self._options.takeover_seconds)

    def _elect(self) -> None:
        """Decide who publishes, from the records of the live auxiliary peers."""
        others = {
            owner: (status, Candidacy(public_key=status.publisher_key, proof=status.publisher_proof))
            for owner, status in self.records.auxiliaries().items()
            if owner != self.records.owner
        }
        proven = proven_keys(((owner, item) for owner, (_, item) in others.items()), self.run.swarm_id)
        listed = self.publisher.keys.holders(PUBLISHER, at=SWARM_TIME())
        trusted = [status for status, item in others.values() if item.public_key in proven & set(listed)]
        addresses = sorted({address for status in trusted for address in status.addresses} - set(self._addresses))
        self.publisher.entry_addresses = (*self._addresses, *addresses[: 2 * MAX_ADDRESSES])
        published = [self.publisher.published_epoch, *(status.published_epoch for status in trusted)]
        self.publisher.published_epoch = max(published)
        alive = {self.publisher.key.public, *(status.publisher_key for status in trusted)}
        self.publisher.set_elected(elect(alive, listed) == self.publisher.key.public)

    def _newest_safe_epoch(self) -> int:
        return max(self.publisher.published_epoch, self.publisher.spool.newest_epoch())

    def _due_spool(self) -> PublicationSpool | None:
        """Return the spool in which a checkpoint is due: the repository's, or the one of its bucket in between."""
        held, safe, last = self.held_epoch, self._newest_safe_epoch(), self.run.num_epochs
        interval, bucket = self.run.checkpoint_interval_epochs, self.publisher.bucket
        if should_publish(held_epoch=held, published_epoch=safe, interval=interval, last_epoch=last):
            return self.publisher.spool
        if bucket is not None:
            safe, interval = max(safe, bucket.newest_epoch()), self.run.bucket_interval_epochs
            if should_publish(held_epoch=held, published_epoch=safe, interval=interval, last_epoch=last):
                return bucket.spool
        return None

    def _spool_if_due(self) -> None:
        spool = self._due_spool()
        if spool is None or time.monotonic() < self._next_spooling:
            return
        try:
            self._spool(spool)
        except OSError as error:
            logger.warning("The checkpoint of epoch %d cannot be written: %s", self.held_epoch, error)
            self._next_spooling = time.monotonic() + DISK_RETRY_SECONDS

    def _spool(self, spool: PublicationSpool) -> None:
        with self._rounds.paused(), self.training_state.at_rest():
            state = RunState(
                run_id=self.run.run_id,
                epoch=self.held_epoch,
                loss=self.metrics.loss_at(self.held_epoch),
                package_version=self._package_version,
            )
            spool.add(
                state.epoch,
                lambda folder: write_checkpoint(folder, self.task, self.model, self.training_state.optimizer, state),
            )

    def _start_snapshot_work(self) -> None:
        if self._worker.due(self.held_epoch, self.run.num_epochs):
            with self._rounds.paused(), self.training_state.at_rest():
                tasks = self._worker.due(self.held_epoch, self.run.num_epochs)
                self._worker.start(tasks, self.held_epoch, self.model)
