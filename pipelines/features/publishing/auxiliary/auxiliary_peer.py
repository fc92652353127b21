"""The auxiliary peer: follows the run without training, keeps its state, publishes checkpoints.

How it keeps up with its run depends on the run's wire, see `following`; what it publishes does not.
"""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.swarm.peer_records import AuxiliaryStatus
from pipelines.core.swarm_time import SWARM_TIME
from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
from pipelines.features.publishing.auxiliary.evaluating.checkpoint_evaluator import (
    CheckpointEvaluator,
    EvaluationOutcome,
)
from pipelines.features.publishing.auxiliary.following import Following
from pipelines.features.publishing.auxiliary.publishing.checkpoint_writing import write_checkpoint
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool
from pipelines.features.publishing.auxiliary.publishing.publisher_election import (
    Candidacy,
    candidacy,
    elect,
    proven_keys,
)
from pipelines.features.publishing.auxiliary.side_threads import PublishingThread
from pipelines.features.publishing.auxiliary.snapshot_tasks import SnapshotWorker
from pipelines.features.publishing.checkpoint_tensors import RunState, load_training_state
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
    """What the auxiliary peer saw and did in one poll of the run."""

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
    """Follows a run and publishes it. Call `restore` and `announce` before `follow`."""

    def __init__(
        self,
        task: PublishableTask,
        following: Following,
        publisher: HubPublisher,
        worker: SnapshotWorker,
        *,
        package_version: str,
        options: AuxiliaryOptions,
        evaluator: CheckpointEvaluator | None = None,
    ) -> None:
        self.task, self.run, self.publisher, self.metrics = task, task.run, publisher, publisher.metrics
        self.following, self._worker, self._package_version = following, worker, package_version
        self._options, self._evaluator = options, evaluator
        self._candidacy = candidacy(publisher.key, self.run.swarm_id, following.owner)
        self._publishing = PublishingThread(publisher, options.retry_seconds)
        self._addresses = following.addresses[:MAX_ADDRESSES]
        self._next_spooling = 0.0
        self._over_since: float | None = None
        self._stalls = StallWatch(point["epoch_seconds"] for point in self.metrics.history())

    @property
    def held_epoch(self) -> int:
        """Epoch of the state that this peer keeps and serves."""
        return self.following.state.state_epoch

    def restore(self, folder: Path | None) -> int:
        """Load a checkpoint's folder, if there is one, and start serving the state; return its epoch."""
        state = self.following.state
        if folder is not None:
            with state.lock:
                state.set_epoch(load_training_state(folder, self.following.model, state.optimizer).epoch)
        self.following.begin()
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
        """Poll the run until `stop` is set or the finished run has been published, and evaluated if it is to be.

        Whoever trains has some seconds to hear that the last state is signed, and to leave.

        Raises:
            RunRolledBackError: the run has started a new generation.
        """
        with self._publishing, self.following.keeping_up():
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
        """Poll the run once: record its figures, put due checkpoints in the spool."""
        figures, reporters = self.following.figures()
        summary = self.metrics.observe(figures, reporters, self.following.rounds, SWARM_TIME(), self.held_epoch)
        self._elect()
        if self.publisher.is_elected:
            self._spool_if_due()
            self._start_snapshot_work()
        self._announce_status()
        epochs = self.following.trainer_epochs()
        return AuxiliaryReport(
            held_epoch=self.held_epoch,
            published_epoch=self.publisher.published_epoch,
            swarm_epoch=max([self.held_epoch, *epochs]),
            num_trainers=len(epochs),
            summary=summary,
            published=self.publisher.take_last_commit(),
            is_publisher=self.publisher.is_elected,
            is_listed=self.publisher.is_listed,
            num_waiting=len(self.publisher.spool.entries()),
            evaluation=self._evaluator.look() if self._evaluator else None,
            evaluating_epoch=self._evaluator.current_epoch if self._evaluator else None,
            stall=self._look_for_stall(len(epochs)),
        )

    def finish(self) -> str | None:
        """Publish the current state and the spool, as far as the Hub allows now; return the last commit, if any.

        What cannot be published stays in the spool, for the next start.
        """
        self._publishing.stop()
        if self.held_epoch >= self.run.num_epochs:
            self._worker.wait()
            if self.publisher.is_elected:  # of an older epoch until now: the last one is evaluated and drawn, too
                self._start_snapshot_work()
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
        self.following.announce(status, lifetime_seconds=self._options.takeover_seconds)

    def _elect(self) -> None:
        """Decide who publishes, from what the live auxiliary peers announce."""
        others = {
            owner: (status, Candidacy(public_key=status.publisher_key, proof=status.publisher_proof))
            for owner, status in self.following.others().items()
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
        following = self.following
        with following.paused(), following.state.at_rest():
            state = RunState(
                run_id=self.run.run_id,
                epoch=self.held_epoch,
                loss=self.metrics.loss_at(self.held_epoch),
                package_version=self._package_version,
            )
            spool.add(
                state.epoch,
                lambda folder: write_checkpoint(folder, self.task, following.model, following.state.optimizer, state),
            )

    def _start_snapshot_work(self) -> None:
        if self._worker.due(self.held_epoch, self.run.num_epochs):
            with self.following.paused(), self.following.state.at_rest():
                tasks = self._worker.due(self.held_epoch, self.run.num_epochs)
                self._worker.start(tasks, self.held_epoch, self.following.model)
