"""The auxiliary peer: follows the run without training, holds its state, re-seeds newcomers, publishes checkpoints.

It is built on the state averager alone: hivemind's `auxiliary=True` optimizer takes part in rounds as a full peer and
refuses to hand out its state, so that a run whose trainers all die would be lost.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemind
import httpx2

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.training.checkpoint_publishing import publish_checkpoint, write_checkpoint
from pipelines.training.checkpoints import RunState, load_training_state
from pipelines.training.peer_metrics import AuxiliaryStatus, SwarmRecords
from pipelines.training.state_averager import SwarmStateAverager
from pipelines.training.state_hand_off import StateHandOff
from pipelines.training.swarm import visible_addresses
from pipelines.training.swarm_progress import EpochSummary, append_summary, should_publish, summarise_epoch
from pipelines.training.swarm_settings import (
    averager_options,
    chunk_timeout,
    hand_off_limits,
    make_state_averager,
    optimizer_parts,
)
from pipelines.training.training_peer import initial_model
from pipelines.training.training_run import TrainingRun

logger = logging.getLogger(__name__)

PUBLISH_RETRY_SECONDS = 20.0
STATUS_LIFETIME_SECONDS = 180.0
"""Longer than a download or a publication may hold this peer up: finishing trainers wait for a peer with a status."""


@dataclass(frozen=True, kw_only=True)
class AuxiliaryReport:
    """What the auxiliary peer saw and did in one look at the swarm."""

    held_epoch: int
    published_epoch: int
    swarm_epoch: int
    num_trainers: int
    summary: EpochSummary | None
    published: str | None
    """Commit of the checkpoint that this look published, if any."""


class AuxiliaryPeer:
    """Follows a run and publishes it. Use as a context manager around `restore` and `follow`."""

    def __init__(
        self,
        repository: str,
        run: TrainingRun,
        dht: hivemind.DHT,
        processor: DalleCollabProcessor,
        *,
        package_version: str,
        history: list[dict[str, Any]] | None = None,
        follow_interval_seconds: float = 5.0,
    ) -> None:
        self.repository, self.run = repository, run
        self.model = initial_model(run)
        self.records = SwarmRecords(dht, run.swarm_id)
        self.history = list(history or [])
        self.published_epoch = 0
        self._dht, self._processor, self._package_version = dht, processor, package_version
        self._follow_interval_seconds = follow_interval_seconds
        self._addresses = visible_addresses(dht)
        self._last_download = self._next_publication = 0.0

    def __enter__(self) -> "AuxiliaryPeer":
        self.averager = make_state_averager(
            SwarmStateAverager,
            dht=self._dht,
            run_id=self.run.swarm_id,
            matchmaking_seconds=self.run.matchmaking_seconds,
            next_chunk_timeout=chunk_timeout(self.run),
            allow_state_sharing=False,
            **averager_options(self.run),
            **optimizer_parts(self.run, self.model),
        )
        self.hand_off = StateHandOff(self.averager, self.records, hand_off_limits(self.run))
        return self

    def __exit__(self, *exception: object) -> None:
        self.hand_off.close()
        self.averager.shutdown()

    @property
    def held_epoch(self) -> int:
        """Epoch of the state that this peer holds and hands out."""
        return self.averager.local_epoch

    def restore(self, folder: Path | None) -> int:
        """Take over a checkpoint's folder, if there is one, and begin to hand the state out; return its epoch."""
        if folder is not None:
            with self.averager.lock_averaged_tensors:
                state = load_training_state(folder, self.model, self.averager.optimizer)
            self.published_epoch = state.epoch
            self.averager.set_epoch(state.epoch)
        self.hand_off.share()
        return self.held_epoch

    def follow(self, stop: threading.Event, poll_seconds: float = 1.0) -> Iterator[AuxiliaryReport]:
        """Look at the swarm again and again until `stop` is set or the finished run has been published."""
        while not stop.is_set():
            report = self.look()
            yield report
            if report.published_epoch >= self.run.num_epochs:
                return
            stop.wait(poll_seconds)

    def look(self) -> AuxiliaryReport:
        """Look at the swarm once: note its figures, take over its state, publish a checkpoint if one is due."""
        summary = summarise_epoch(self.records.metrics().values(), time.time())
        self.history = append_summary(self.history, summary)
        available = self.hand_off.newest_epoch()
        if available > self.held_epoch and self._may_download(available):
            self._download()
        published = self._publish_if_due()
        self._announce_status()
        progress = self.records.progress()
        return AuxiliaryReport(
            held_epoch=self.held_epoch,
            published_epoch=self.published_epoch,
            swarm_epoch=max([self.held_epoch, *(record.epoch for record in progress)]),
            num_trainers=len(progress),
            summary=summary,
            published=published,
        )

    def publish_held_state(self) -> str | None:
        """Publish a checkpoint of the held state now, unless it is on the Hub already; return the commit."""
        if self.held_epoch <= self.published_epoch:
            return None
        with tempfile.TemporaryDirectory(prefix="dalle-collab-checkpoint-") as name:
            self._write_checkpoint(Path(name))
            commit = publish_checkpoint(self.repository, Path(name), self.held_epoch)
        self.published_epoch = self.held_epoch
        return commit

    def _may_download(self, available: float) -> bool:
        is_last = available >= self.run.num_epochs
        return is_last or time.monotonic() - self._last_download >= self._follow_interval_seconds

    def _download(self) -> None:
        self.hand_off.fetch(at_least=self.held_epoch + 1)
        self._last_download = time.monotonic()
        self.hand_off.share()

    def _announce_status(self) -> None:
        status = AuxiliaryStatus(
            held_epoch=self.held_epoch,
            published_epoch=self.published_epoch,
            addresses=list(self._addresses[:16]),
        )
        self.records.publish_auxiliary(status, lifetime_seconds=STATUS_LIFETIME_SECONDS)

    def _publish_if_due(self) -> str | None:
        due = should_publish(
            held_epoch=self.held_epoch,
            published_epoch=self.published_epoch,
            interval=self.run.checkpoint_interval_epochs,
            last_epoch=self.run.num_epochs,
        )
        if not due or time.monotonic() < self._next_publication:
            return None
        try:
            return self.publish_held_state()
        except (OSError, httpx2.HTTPError) as error:  # the run goes on while the Hub is away
            logger.warning("The checkpoint could not be published, next try in 20 s: %s", error)
            self._next_publication = time.monotonic() + PUBLISH_RETRY_SECONDS
            return None

    def _write_checkpoint(self, folder: Path) -> None:
        losses = [point["loss"] for point in self.history if point["epoch"] <= self.held_epoch]
        state = RunState(
            run_id=self.run.run_id,
            epoch=self.held_epoch,
            loss=losses[-1] if losses else None,
            package_version=self._package_version,
        )
        with self.averager.lock_averaged_tensors:
            write_checkpoint(
                folder,
                repository=self.repository,
                run=self.run,
                model=self.model,
                processor=self._processor,
                optimizer=self.averager.optimizer,
                state=state,
                history=self.history,
            )
