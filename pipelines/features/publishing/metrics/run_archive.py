"""Everything that the Hub has about a run, gathered for its report."""

from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub import HfApi
from huggingface_hub.hf_api import RepoFile

from hub_tools.foreign.downloads import listed_files
from hub_tools.run_files import OPTIMIZER_FILE, WEIGHTS_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.ledger.coverage import PassCoverage, coverage
from pipelines.features.ledger.ledger_files import read_bookings
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions
from pipelines.features.publishing.metrics.credit.contributors import Contributor, contributors_of
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, read_figures
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow, read_evaluations
from pipelines.features.publishing.metrics.history import published_metrics, read_history_files, read_old_history
from pipelines.features.publishing.repository.snapshot import RunSnapshot

CHECKPOINT_TITLE = "Checkpoint of epoch "
"""Start of the titles of the auxiliary peer's commits."""


@dataclass(frozen=True, kw_only=True)
class PublishedCheckpoint:
    """One checkpoint in the run's repository."""

    epoch: int
    commit: str
    time: float
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class RunArchive:
    """A run, its history and what it published on the Hub."""

    repository: str
    run: TrainingRun

    epoch: int | None
    """Epoch of the newest checkpoint; None before there is one."""

    history: Sequence[EpochSummary]
    """One point for each epoch that the auxiliary peer saw."""

    evaluations: Sequence[HeldOutRow]

    contributors: Sequence[Contributor]
    checkpoints: Sequence[PublishedCheckpoint]

    checkpoint_bytes: int | None
    """Weights and optimizer state of the newest checkpoint."""

    dataset_bytes: int | None
    """All shards of the dataset's revision."""

    num_commits: int
    """Commits in the run's repository."""

    figures: Sequence[CheckpointFigure] = ()
    """Of evaluated checkpoints, by epoch."""

    passes: Sequence[PassCoverage] = ()
    """How much of each pass over the data was trained on."""


def gather_archive(repository: str, now: float) -> RunArchive:
    """Read a run's record from the Hub; `now` is in seconds since 1970.

    Raises:
        ValueError: there is no such run, or its published files are damaged.
    """
    snapshot = RunSnapshot.read(repository)
    commits = HfApi().list_repo_commits(repository, revision=snapshot.commit)
    files = listed_files(repository, snapshot.commit)
    with published_metrics(snapshot) as metrics:
        return RunArchive(
            repository=repository,
            run=snapshot.run,
            epoch=snapshot.epoch,
            history=read_history_files(metrics) or read_old_history(snapshot),
            evaluations=read_evaluations(metrics),
            figures=read_figures(metrics),
            contributors=contributors_of(read_contributions(metrics), now),
            passes=coverage(read_bookings(metrics)),
            checkpoints=[
                PublishedCheckpoint(
                    epoch=int(commit.title.removeprefix(CHECKPOINT_TITLE).split()[0]),
                    commit=commit.commit_id,
                    time=commit.created_at.timestamp(),
                )
                for commit in reversed(commits)
                if commit.title.startswith(CHECKPOINT_TITLE)
            ],
            checkpoint_bytes=_bytes_of(files, WEIGHTS_FILE, OPTIMIZER_FILE),
            dataset_bytes=_dataset_bytes(snapshot.run),
            num_commits=len(commits),
        )


def _dataset_bytes(run: TrainingRun) -> int | None:
    try:
        files = listed_files(run.dataset_repository, run.dataset_revision, "dataset")
    except OSError:  # the dataset may be gone long after the run; the report is still wanted
        return None
    return _bytes_of(files, ".parquet")


def _bytes_of(files: Sequence[RepoFile], *endings: str) -> int | None:
    sizes = [file.size for file in files if file.path.endswith(endings)]
    return sum(sizes) if sizes else None
