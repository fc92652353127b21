"""Publishing a run: one commit at a time, on top of the head that was read, within a budget, in order, with retries.

A due checkpoint waits in the spool until its commit is made. Each commit names its parent, so that of two peers that
both believe they are the publisher, only one can publish an epoch.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from pathlib import Path

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.one_line_errors import explain_error
from hub_tools.publishing.commits import HeadMovedError, Operation, commit_on
from hub_tools.run_files import MANIFEST_FILE, RESULTS_FILE
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.swarm_time import SWARM_TIME
from pipelines.features.publishing.auxiliary.publishing.bucket_publisher import BucketPublisher
from pipelines.features.publishing.auxiliary.publishing.commit_budget import CommitBudget
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool, SpooledCheckpoint
from pipelines.features.publishing.auxiliary.publishing.shown_files import Additions, ShownFiles, outdated
from pipelines.features.publishing.metrics.run_metrics import MetricsMark, RunMetrics
from pipelines.features.publishing.publishable_task import PublishableTask
from pipelines.features.publishing.repository.announcements import announce_auxiliary, announced_entries
from pipelines.features.publishing.repository.epoch_tags import drop_old_optimizer_states, tag_epoch
from pipelines.features.publishing.repository.key_list import PUBLISHER, KeyList, TrustedKeys
from pipelines.features.publishing.repository.manifest import CheckpointManifest, CheckpointRefusedError
from pipelines.features.publishing.repository.organiser import Organiser
from pipelines.features.publishing.repository.snapshot import RunSnapshot

logger = logging.getLogger(__name__)

HEAD_CHECK_SECONDS = 60.0
IDLE_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
METRICS_SHARE = 0.5
"""Metrics-only commits use at most this share of the budget: the rest is for checkpoints."""


OnPublished = Callable[[int, Path, str], None]
"""Gets the epoch of a checkpoint, the folder with its files, and its commit."""


class RunRolledBackError(RuntimeError):
    """The run has started a new generation: this peer's state is no longer part of it."""


class HubPublisher:
    """Makes the commits of one auxiliary peer. `work` is called repeatedly, by one thread at a time."""

    def __init__(
        self,
        repository: str,
        task: PublishableTask,
        *,
        key: PublisherKey,
        organiser: Organiser | None,
        spool: PublicationSpool,
        budget: CommitBudget,
        metrics: RunMetrics,
        reel_folder: Path,
        metrics_interval_seconds: float,
        package_version: str,
        bucket: BucketPublisher | None = None,
        on_published: OnPublished = lambda epoch, folder, commit: None,
        head_check_seconds: float = HEAD_CHECK_SECONDS,
    ) -> None:
        """`bucket` is the run's, if any. Every `head_check_seconds` the repository's newest commit is looked at.

        `on_published` is called before a published checkpoint leaves the spool.
        """
        self.repository, self.run, self.key, self.spool, self.metrics = repository, task.run, key, spool, metrics
        self.bucket, self._head_check_seconds = bucket, head_check_seconds
        self.entry_addresses: tuple[str, ...] = ()
        """Addresses that the repository should list while this peer is the publisher."""

        self.published_epoch = 0
        self._organiser, self._trusted = organiser, TrustedKeys(task.run)
        self._shown = ShownFiles(repository=repository, task=task, metrics=metrics, reel_folder=reel_folder)
        self._budget, self._metrics_interval_seconds = budget, metrics_interval_seconds
        self._package_version, self._on_published = package_version, on_published
        self._may_add_results = True
        self._is_elected = self._must_take_over = self._is_last = False
        self._announced: tuple[str, ...] = ()
        self._last_commit: str | None = None
        self._next_head_check = self._next_metrics = 0.0
        self._published_mark = MetricsMark()
        self._lock = threading.Lock()

    @property
    def keys(self) -> KeyList:
        """The newest list of the run's keys that can be trusted; `look` reads it."""
        return self._trusted.newest()

    @property
    def is_listed(self) -> bool:
        """Whether this peer's key is that of a publisher of the run: until then it publishes nothing."""
        return self.keys.has_role(self.key.public, PUBLISHER, at=SWARM_TIME())

    @property
    def is_elected(self) -> bool:
        """Whether this peer is the one that publishes."""
        return self._is_elected and self.is_listed

    def anchor_keys(self) -> Sequence[str]:
        """Return the public keys of the run's anchors, in order, as far as the Hub was read."""
        return self._trusted.anchors()

    def set_elected(self, is_elected: bool) -> None:
        """Become the publisher or step down; a new publisher continues from what its predecessor published."""
        self._must_take_over |= is_elected and not self._is_elected
        self._is_elected = is_elected

    def look(self) -> RunSnapshot:
        """Read the head of the run's repository, and from it the publishers' keys."""
        head = RunSnapshot.read(self.repository, in_cache=False).trusting(self._trusted)
        self._take_note(head)
        return head

    def begin(self, addresses: Sequence[str]) -> RunSnapshot:
        """Announce this peer on the Hub, and continue from what is published there.

        Its key is listed by itself only on the organiser's machine, and in runs without an organiser's key.
        """
        head = self._announce(addresses)
        self._take_over(head)
        return head

    def take_last_commit(self) -> str | None:
        """Return the commit of the checkpoint published since the last call, if any."""
        with self._lock:
            commit, self._last_commit = self._last_commit, None
        return commit

    def work(self) -> float:
        """Do the next piece of work; return how many seconds the next call can wait.

        Raises:
            RunRolledBackError: the run has started a new generation.
            OSError, httpx2.HTTPError: the Hub is down; what was due for publication is kept.
        """
        if not self._has_work() and time.monotonic() < self._next_head_check:
            return IDLE_SECONDS
        head = self.look()
        if not self.is_elected:
            return IDLE_SECONDS
        if self._must_take_over:
            self._take_over(head)
        if self.bucket is not None:
            self.bucket.work(self.repository, self.keys, head.signed_epoch, lambda entry: self._manifest(head, entry))
        entries = self._without_published(head)
        share = 1.0 if entries or self._is_last else METRICS_SHARE
        if (seconds := self._budget.seconds_until_commit(time.time(), share=share)) > 0:
            return min(seconds, LONGEST_WAIT_SECONDS)
        if self.entry_addresses and self._announced != self.entry_addresses:
            self._announce(self.entry_addresses)
        elif entries:
            self._publish_checkpoint(head, entries[0])
        elif self._metrics_are_due():
            self._publish_metrics(head)
        return 0.0 if self._has_work() else IDLE_SECONDS

    def drain(self) -> None:
        """Publish the spool and the newest metrics, as far as the Hub and the budget allow; the rest is kept."""
        self._next_metrics, self._is_last = 0.0, True
        while self._has_work():
            try:
                if self.work() > IDLE_SECONDS:
                    return
            except HeadMovedError:
                continue
            except (OSError, httpx2.HTTPError, CheckpointRefusedError, RunRolledBackError) as error:
                logger.warning("What waits for the Hub stays in the spool: %s", explain_error(error))
                return

    def _take_note(self, head: RunSnapshot) -> None:
        self._next_head_check = time.monotonic() + self._head_check_seconds
        if self._trusted.accepts(head.run) and head.run.generation != self.run.generation:
            raise RunRolledBackError(
                f"{self.repository} was rolled back to epoch {head.signed_epoch}: it continues as generation "
                f"{head.run.generation}, this peer is of generation {self.run.generation}."
            )
        self._announced = announced_entries(head, time.time())
        self.published_epoch = max(self.published_epoch, head.signed_epoch)

    def _announce(self, addresses: Sequence[str]) -> RunSnapshot:
        announce_auxiliary(
            self.repository,
            key=self.key,
            keys=self.keys,
            addresses=addresses,
            organiser=self._organiser,
            now=time.time(),
            before_commit=self._count_commit,
        )
        head = self.look()
        if self._organiser is not None:
            self._organiser.newest(head)  # keeps a copy
        return head

    def _take_over(self, head: RunSnapshot) -> None:
        self._shown.take_over(head)
        self._must_take_over = False

    def _has_work(self) -> bool:
        if not self.is_elected:
            return False
        is_moved = bool(self.entry_addresses) and self.entry_addresses != self._announced
        is_due = self.spool.newest_epoch() > 0 or self._metrics_are_due()
        return is_moved or self._must_take_over or is_due or (self.bucket is not None and self.bucket.has_work())

    def _metrics_are_due(self, now: float | None = None) -> bool:
        """`now`: in seconds of the clock that nobody sets, `time.monotonic`."""
        now = time.monotonic() if now is None else now
        return self.is_elected and self.metrics.mark() != self._published_mark and now >= self._next_metrics

    def _without_published(self, head: RunSnapshot) -> list[SpooledCheckpoint]:
        entries = self.spool.entries()
        for entry in entries:
            if entry.epoch <= head.signed_epoch:
                self.spool.remove(entry.epoch)
        return [entry for entry in entries if entry.epoch > head.signed_epoch]

    def _publish_checkpoint(self, head: RunSnapshot, entry: SpooledCheckpoint) -> None:
        try:
            entry.check()
        except CheckpointRefusedError as error:
            logger.warning("Dropping a checkpoint from the spool: %s", error)
            self.spool.remove(entry.epoch)
            return
        additions: dict[str, Path | bytes] = {name: entry.folder / name for name in entry.files}
        additions[MANIFEST_FILE] = self._manifest(head, entry).signed(self.key).encode()
        self._shown.describe(entry)
        self._count_commit()
        commit = self._commit(head, additions, f"Checkpoint of epoch {entry.epoch}", with_card=True)
        self._on_published(entry.epoch, entry.folder, commit)
        with self._lock:
            self._last_commit, self.published_epoch = commit, entry.epoch
        self.spool.remove(entry.epoch)
        self._tidy(head, entry, commit)

    def _publish_metrics(self, head: RunSnapshot) -> None:
        self._count_commit()
        _, *evaluated = self.metrics.mark()
        _, *shown = self._published_mark
        self._commit(head, {}, f"Metrics up to epoch {self.metrics.newest_epoch()}", with_card=evaluated != shown)

    def _commit(self, head: RunSnapshot, additions: Additions, message: str, *, with_card: bool) -> str:
        mark = self.metrics.mark()
        with self._shown.written(head, with_card=with_card) as shown:
            every = {**additions, **shown}
            if not self._may_add_results:
                every.pop(RESULTS_FILE, None)
            operations: list[Operation] = [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(value) if isinstance(value, Path) else value)
                for name, value in every.items()
            ]
            operations += [CommitOperationDelete(path_in_repo=name) for name in outdated(head.file_names, every)]
            try:
                commit = commit_on(
                    head.commit, self.repository, operations, message, limit_seconds=LONGEST_WAIT_SECONDS
                ).oid
            except HfHubHTTPError as error:
                self._doubt_results(error, every)
                raise
        self._published_mark = mark
        self._next_metrics = time.monotonic() + self._metrics_interval_seconds
        return commit

    def _doubt_results(self, error: HfHubHTTPError, additions: Additions) -> None:
        status = None if error.response is None else error.response.status_code
        if may_be_because_of_results(status, additions):
            logger.warning(
                "The Hub refuses a commit with %s: trying again without it. %s", RESULTS_FILE, explain_error(error)
            )
            self._may_add_results = False

    def _manifest(self, head: RunSnapshot, entry: SpooledCheckpoint) -> CheckpointManifest:
        return CheckpointManifest(
            run_id=self.run.run_id,
            generation=self.run.generation,
            epoch=entry.epoch,
            dataset_repository=self.run.dataset_repository,
            dataset_revision=self.run.dataset_revision,
            package_version=self._package_version,
            parent_commit=head.commit,
            parent_epoch=head.manifest.epoch if head.manifest else None,
            parent_manifest=head.manifest_sha256,
            contributors=self.metrics.contributors(),
            files=entry.files,
        )

    def _tidy(self, head: RunSnapshot, entry: SpooledCheckpoint, commit: str) -> None:
        """Tag the epoch and drop old optimizer states; failures are retried after the next checkpoint."""
        api = HfApi()
        try:
            if head.manifest is not None:
                tag_epoch(api, self.repository, head.signed_epoch, head.commit, only_if_missing=True)
            tag_epoch(api, self.repository, entry.epoch, commit)
            drop_old_optimizer_states(api, self.repository, entry.files, self.run.keep_optimizer_states)
        except (OSError, httpx2.HTTPError) as error:
            logger.warning(
                "Epoch %d is published, but not tagged and cleaned up yet: %s", entry.epoch, explain_error(error)
            )

    def _count_commit(self) -> None:
        self._budget.count(time.time())


def may_be_because_of_results(status: int | None, additions: Collection[str]) -> bool:
    """Return whether the Hub may have refused a commit for its evaluation results: checkpoints go on without them."""
    return status in REFUSED and RESULTS_FILE in additions
