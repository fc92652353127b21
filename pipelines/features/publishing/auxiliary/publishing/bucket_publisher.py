"""Publishing into the run's bucket: metrics as often as they change, and checkpoints between those of the repository.

Nothing here counts as a commit. The bucket may fail without holding up the repository: what is due waits on disk.
"""

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
from huggingface_hub import HfApi

from hub_tools.one_line_errors import explain_error
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.features.publishing.auxiliary.publishing.publication_spool import PublicationSpool, SpooledCheckpoint
from pipelines.features.publishing.metrics.run_metrics import MetricsMark, RunMetrics
from pipelines.features.publishing.repository.key_list import KeyList
from pipelines.features.publishing.repository.manifest import CheckpointManifest, CheckpointRefusedError
from pipelines.features.publishing.repository.run_bucket import RunBucket

logger = logging.getLogger(__name__)


class BucketPublisher:
    """Fills the bucket of a run; `work` is called by the publishing thread."""

    def __init__(
        self,
        run: TrainingRun,
        *,
        key: PublisherKey,
        spool: PublicationSpool,
        metrics: RunMetrics,
        metrics_interval_seconds: float,
        retry_seconds: float,
    ) -> None:
        """`spool` is for checkpoints that go into the bucket alone."""
        self.spool, self.published_epoch = spool, 0
        self._bucket, self._key, self._metrics = RunBucket(run), key, metrics
        self._interval_seconds, self._retry_seconds = metrics_interval_seconds, retry_seconds
        self._is_ready = False
        self._next_metrics = self._next_try = 0.0
        self._published_mark = MetricsMark()

    def newest_epoch(self) -> int:
        """Return the newest epoch that is in the bucket or waits for it, or 0."""
        return max(self.published_epoch, self.spool.newest_epoch())

    def has_work(self) -> bool:
        """Say whether something is due."""
        if time.monotonic() < self._next_try:
            return False
        return not self._is_ready or self.spool.newest_epoch() > 0 or self._metrics_are_due()

    def take_over(self, repository: str, keys: KeyList) -> None:
        """Create the bucket if need be, as private as the repository, and continue what another has published there."""
        self._bucket.create(private=bool(HfApi().repo_info(repository).private))
        with tempfile.TemporaryDirectory(prefix="dalle-collab-bucket-") as folder:
            self._metrics.take_over(self._bucket.get_metrics(Path(folder)))
        self.published_epoch = max((it.epoch for it, _ in self._bucket.signed_checkpoints(keys)), default=0)
        self._is_ready = True

    def work(
        self,
        repository: str,
        keys: KeyList,
        in_repository: int,
        manifest_of: Callable[[SpooledCheckpoint], CheckpointManifest],
    ) -> None:
        """Do what is due; what fails waits. `in_repository` is the newest epoch that the repository has."""
        if not self.has_work():
            return
        try:
            if not self._is_ready:
                self.take_over(repository, keys)
            if (entry := self._newest_needed(in_repository)) is not None:
                self._publish(entry, manifest_of(entry), keys)
            if self._metrics_are_due():
                mark = self._metrics.mark()
                self._bucket.put_metrics(self._metrics.write())
                self._published_mark, self._next_metrics = mark, time.monotonic() + self._interval_seconds
        except (OSError, httpx2.HTTPError, ValueError) as error:
            said = explain_error(error)
            logger.warning("Nothing could be put into the bucket, next try in %.0f s: %s", self._retry_seconds, said)
            self._next_try = time.monotonic() + self._retry_seconds

    def _publish(self, entry: SpooledCheckpoint, manifest: CheckpointManifest, keys: KeyList) -> None:
        try:
            entry.check()
        except CheckpointRefusedError as error:
            logger.warning("Dropping a checkpoint from the spool: %s", error)
        else:
            self._bucket.put_checkpoint(entry.folder, manifest, manifest.signed(self._key), keys)
            self.published_epoch = entry.epoch
        self.spool.remove(entry.epoch)

    def _newest_needed(self, in_repository: int) -> SpooledCheckpoint | None:
        """Return the newest entry, and drop the others: nobody would load them."""
        entries = self.spool.entries()
        needed = entries[-1:] if entries and entries[-1].epoch > max(in_repository, self.published_epoch) else []
        for entry in entries[: len(entries) - len(needed)]:
            self.spool.remove(entry.epoch)
        return needed[0] if needed else None

    def _metrics_are_due(self) -> bool:
        return self._metrics.mark() != self._published_mark and time.monotonic() >= self._next_metrics
