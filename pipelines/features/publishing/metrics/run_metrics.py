"""What the auxiliary peer knows about the run: history, evaluations, contributions, in memory and on disk."""

import hashlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hub_tools.atomic_files import write_text_whole
from hub_tools.run_files import SUMMARY_FILE
from pipelines.core.run.bounded_speeds import bounded_speeds
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.peer_records import PeerMetrics, Reporter
from pipelines.features.held_out_loss import HeldOutLoss
from pipelines.features.publishing.metrics.credit.claims import Claim, RoundLog
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions, write_contributions
from pipelines.features.publishing.metrics.credit.contributions import leaderboard
from pipelines.features.publishing.metrics.credit.contributors import contributor_table, contributors_of
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary, summarise_epoch
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import (
    CheckpointFigure,
    merged_figures,
    read_figures,
    write_figures,
)
from pipelines.features.publishing.metrics.evaluation.held_out_losses import (
    HeldOutRow,
    read_evaluations,
    write_evaluations,
)
from pipelines.features.publishing.metrics.history import (
    append_point,
    merge_histories,
    read_history_files,
    shard_name,
    summary_json,
    write_history,
)

MAX_LEADERBOARD = 200
MAX_PEERS = 24
"""Peers in the summary, the fastest ones."""


class MetricsMark(NamedTuple):
    """How far the metrics have come."""

    epoch: int = 0
    """Of the history's last point."""

    evaluated_epoch: int = 0
    """Of the last held-out loss."""

    figures_at: float = 0.0
    """When the newest evaluation of a checkpoint ended, in seconds since 1970."""


class Companion(Protocol):
    """Something else that is published with the metrics, in files of its own in their folder."""

    def write(self) -> None:
        """Write changes to the folder."""

    def take_over(self, folder: Path) -> None:
        """Merge what another publisher has published."""


class RunMetrics:
    """Observed by one thread, written and published by another. `folder` preserves it across restarts."""

    def __init__(self, run: TrainingRun, folder: Path) -> None:
        self._run, self.folder, self._lock = run, folder, threading.Lock()
        self.companion: Companion | None = None
        self._written_epoch = 0
        self._peers: list[tuple[str, float]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._history = read_history_files(folder)
        self._evaluations = read_evaluations(folder)
        self._figures = read_figures(folder)
        self._ledger = read_contributions(folder)

    def observe(
        self,
        peers: Mapping[bytes, PeerMetrics],
        reporters: Mapping[bytes, Reporter],
        rounds: RoundLog,
        now: float,
        held_epoch: int,
    ) -> EpochSummary | None:
        """Record the peers' newest figures; return their summary. `reporters` are those whose samples count."""
        summary = summarise_epoch(peers.values(), now, held_epoch)
        if summary is None:
            return None
        claims = {
            hashlib.sha256(key).hexdigest()[:32]: Claim(
                username=peer.username,
                epoch=peer.epoch,
                num_samples=peer.num_samples,
                samples_per_second=peer.samples_per_second,
                user=reporters[key].user,
                sender=reporters[key].sender,
                device=reporters[key].device,
            )
            for key, peer in peers.items()
            if key in reporters
        }
        newest = range(max(1, summary["epoch"] - 1), summary["epoch"] + 1)  # who has just ended it has its figures
        here = [peer for key, peer in peers.items() if key in reporters and peer.epoch in newest]
        by_user = dict[str, float]()
        for peer, speed in zip(here, bounded_speeds([peer.samples_per_second for peer in here]), strict=True):
            by_user[peer.username] = by_user.get(peer.username, 0.0) + speed
        with self._lock:
            self._peers = sorted(by_user.items(), key=lambda one: -one[1])[:MAX_PEERS]
            append_point(self._history, summary)
            self._written_epoch = min(self._written_epoch, summary["epoch"])
            self._ledger.observe(
                claims,
                rounds,
                now=now,
                swarm_epoch=summary["epoch"],
                batch_size=self._run.samples_per_epoch,
                max_ratio=self._run.max_weight_ratio,
            )
        return summary

    def add_evaluation(self, loss: HeldOutLoss, *, epoch: int, weights: str, seconds: float, now: float) -> None:
        """Record the loss on held-out records, of the state with this digest; a second one of an epoch replaces it."""
        row = HeldOutRow(
            epoch=epoch, loss=loss.mean, num_records=loss.num_samples, time=now, seconds=seconds,
            low=loss.low, high=loss.high, weights=weights,
        )  # fmt: skip
        with self._lock:
            self._evaluations = [*(e for e in self._evaluations if e["epoch"] < epoch), row]

    def add_figures(self, figures: Sequence[CheckpointFigure]) -> None:
        """Record an evaluation of a checkpoint; a second one of an epoch replaces the first."""
        with self._lock:
            self._figures = merged_figures(self._figures, figures)

    def take_over(self, folder: Path) -> None:
        """Merge what another publisher has published: its points where we have none, its counts if they are newer."""
        if self.companion is not None:
            self.companion.take_over(folder)
        history, evaluations, ledger = read_history_files(folder), read_evaluations(folder), read_contributions(folder)
        figures = read_figures(folder)
        with self._lock:
            self._history = merge_histories(history, self._history)
            known = {row["epoch"]: row for row in (*evaluations, *self._evaluations)}
            self._evaluations = [known[epoch] for epoch in sorted(known)]
            self._figures = merged_figures(figures, self._figures)
            # Each ledger has counted everything that the peers reported up to its own time.
            if ledger.time > self._ledger.time:
                self._ledger = ledger
            self._written_epoch = 0

    def write(self) -> list[Path]:
        """Write changes to the folder; return all current files."""
        if self.companion is not None:
            self.companion.write()
        with self._lock:
            history, evaluations, ledger = list(self._history), list(self._evaluations), self._ledger
            write_history(history, self.folder, self._written_epoch)
            self._written_epoch = history[-1]["epoch"] if history else 0
            write_evaluations(evaluations, self.folder)
            write_figures(self._figures, self.folder)
            write_contributions(ledger, self.folder)
            board = leaderboard(ledger.days, time.time(), MAX_LEADERBOARD)
            text = summary_json(
                facts=self._facts(),
                history=history,
                evaluations=evaluations,
                leaderboard=board,
                num_contributors=len(ledger.total()),
                now=time.time(),
                peers=self._peers,
            )
        write_text_whole(self.folder / SUMMARY_FILE, text)
        self._remove_lost_shards(history)
        return sorted(path for path in self.folder.iterdir() if not path.name.startswith("."))

    def history(self) -> list[EpochSummary]:
        """Return the points of the history, one per epoch."""
        with self._lock:
            return list(self._history)

    def evaluations(self) -> list[HeldOutRow]:
        """Return the losses on held-out records."""
        with self._lock:
            return list(self._evaluations)

    def contributor_table(self, most: int) -> str:
        """Return who has contributed how much on which devices, `most` of them by name, in Markdown; empty for none."""
        with self._lock:
            contributors = contributors_of(self._ledger, time.time())
        return contributor_table(contributors, self._run.unit, most) if contributors else ""

    def figures(self) -> list[CheckpointFigure]:
        """Return the figures of all evaluated checkpoints, by epoch."""
        with self._lock:
            return list(self._figures)

    def contributors(self) -> dict[str, int]:
        """Return the samples that each user has contributed to the run."""
        with self._lock:
            return {user: total.samples for user, total in sorted(self._ledger.total().items())}

    def newest_epoch(self) -> int:
        """Return the epoch of the newest point, or 0."""
        with self._lock:
            return self._history[-1]["epoch"] if self._history else 0

    def mark(self) -> MetricsMark:
        """Return what is known so far: changes since an earlier mark are worth publishing."""
        with self._lock:
            history, evaluations = (rows[-1]["epoch"] if rows else 0 for rows in (self._history, self._evaluations))
            return MetricsMark(history, evaluations, self._figures[-1].time if self._figures else 0.0)

    def loss_at(self, epoch: int) -> float | None:
        """Return the newest training loss up to an epoch."""
        with self._lock:
            losses: Iterable[float] = (p["loss"] for p in reversed(self._history) if p["epoch"] <= epoch)
            return next(iter(losses), None)

    def _facts(self) -> dict[str, object]:
        run = self._run
        names = ("run_id", "generation", "num_epochs", "target_batch_size", "dataset_repository")
        return {name: getattr(run, name) for name in names}

    def _remove_lost_shards(self, history: list[EpochSummary]) -> None:
        current = {shard_name(point["epoch"]) for point in history}
        for path in self.folder.glob("epochs-*.parquet"):
            if path.name not in current:
                path.unlink()
