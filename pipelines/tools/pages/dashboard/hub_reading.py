"""Keeps what the Hub has of a run in memory: settings, history, contributions, checkpoints, pictures."""

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi
from huggingface_hub.utils import disable_progress_bars

from hub_tools.checks import is_number
from hub_tools.foreign.downloads import fetch_file
from hub_tools.foreign.json_texts import read_json
from hub_tools.one_line_errors import explain_error
from hub_tools.run_files import METRICS_FOLDER, REEL_FOLDER, REEL_INDEX_FILE, SUMMARY_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.ledger.coverage import NewestPass, newest_pass
from pipelines.features.ledger.ledger_files import STATE_FILE, read_state
from pipelines.features.publishing.metrics.credit.contribution_files import read_contributions
from pipelines.features.publishing.metrics.credit.contributions import Contribution
from pipelines.features.publishing.metrics.credit.served import read_served, served_file
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, read_figures
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow, read_evaluations
from pipelines.features.publishing.metrics.history import published_metrics, read_history_files, read_old_history
from pipelines.features.publishing.metrics.sample_gallery import PICTURE_NAME, read_index, read_prompts
from pipelines.features.publishing.repository.epoch_tags import tagged_epochs
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 10.0
SECONDS_BETWEEN_METRICS = 60.0
"""How old metrics of a run's bucket may be while its repository does not change."""

ANSWER_SECONDS = 15.0
MAX_COMPARED = 8
SECONDS_TO_WAIT = 3.0


@dataclass(frozen=True, kw_only=True)
class HubView:
    """What the Hub has of a run."""

    run: TrainingRun | None = None
    """None before the Hub has answered for the first time."""

    commit: str = ""
    history: HistoryColumns = field(default_factory=lambda: HistoryColumns.from_points([], 0.0))
    evaluations: Sequence[HeldOutRow] = ()
    """Held-out losses, by epoch; see `held_out_losses`."""

    figures: Sequence[CheckpointFigure] = ()
    """Of evaluated checkpoints, by epoch."""

    newest_pass: NewestPass | None = None
    """How far the data was read; None: nobody keeps a ledger."""

    contributions: Mapping[tuple[str, str], Contribution] = field(default_factory=dict)
    """By day and user name; see `contributions.ContributionLedger`."""

    served: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Candidates that auxiliary peers have had drawn and found right, by day and user; see `credit.served`."""

    checkpoints: Mapping[int, str] = field(default_factory=dict)
    """Commits by epoch."""

    weights_sha256: str | None = None
    """Of the newest checkpoint, which is what servers call its revision; None: there is none that counts."""

    num_layers: int | None = None
    """Of the published model."""

    pictures: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    """File names of the progress reel by epoch, and when they were drawn, in seconds since 1970; 0: not known."""

    prompts: Sequence[str] = ()
    """The reel's captions, from top to bottom."""

    read_at: float = 0.0
    """When the Hub last answered, in seconds since 1970."""

    metrics_at: float = 0.0
    """When the metrics were last read."""

    problem: str = "The Hub has not answered yet."
    """Why this may be out of date; empty if it is fresh."""

    @property
    def unit(self) -> str:
        """What the run counts; see `TrainingRun.unit`."""
        return self.run.unit if self.run else "samples"


class HubReader:
    """Polls a run's repository in the background; unchanged files are not downloaded again."""

    def __init__(self, repository: str, seconds_between_looks: float = SECONDS_BETWEEN_LOOKS) -> None:
        self._repository, self._seconds = repository, seconds_between_looks
        self._view, self._stop = HubView(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="hub reader")

    def __enter__(self) -> "HubReader":
        disable_progress_bars()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(ANSWER_SECONDS)

    @property
    def view(self) -> HubView:
        """The current view."""
        return self._view

    def look(self) -> HubView:
        """Ask the Hub once; if it does not answer, keep what is known and record the reason."""
        try:
            self._view = read_hub(self._repository, self._view)
        except (OSError, ValueError, httpx2.HTTPError) as error:
            self._view = _with_problem(self._view, explain_error(error))
        return self._view

    def picture(self, name: str) -> Path:
        """Return the file of a picture of the reel; raises FileNotFoundError for any other name."""
        if not PICTURE_NAME.fullmatch(name) or name not in {file for file, _ in self._view.pictures.values()}:
            raise FileNotFoundError(f"There is no picture {name} in the progress reel of {self._repository}.")
        return fetch_file(self._repository, f"{REEL_FOLDER}/{name}", revision=self._view.commit)

    def look_safely(self) -> None:
        """Ask the Hub once; whatever is in the repository, the page continues with what it has."""
        try:
            self.look()
        except Exception:
            logger.exception("The run's repository cannot be read.")
            self._view = _with_problem(self._view, f"The contents of {self._repository} cannot be understood.")

    def _keep(self) -> None:
        while not self._stop.is_set():
            self.look_safely()
            self._stop.wait(self._seconds)


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """The published curve of another run."""

    history: HistoryColumns = field(default_factory=lambda: HistoryColumns.from_points([], 0.0))
    problem: str = ""
    """Why there is none."""

    read_at: float = -math.inf
    """When it was read, on the process's clock."""


class ComparedRuns:
    """Other runs that visitors ask for: the newest `MAX_COMPARED` are kept, and one is read at a time.

    Read as anybody may read them, without the token of who has started the page.
    """

    def __init__(self) -> None:
        self._known = dict[str, ComparedRun]()
        self._is_reading = threading.Lock()
        """Held from the question to the answer: whoever reads is the only one that changes what is known."""

    def get(self, repository: str) -> ComparedRun:
        """Return what is known of a run: one that is new or old is read, and waited for `SECONDS_TO_WAIT`."""
        known = self._known.get(repository)
        if known is not None and time.monotonic() - known.read_at < SECONDS_BETWEEN_METRICS:
            return known
        if not self._is_reading.acquire(blocking=False):
            return known or ComparedRun(problem="Another run is being read; ask again in a few seconds.")
        thread = threading.Thread(target=self._read_and_release, args=(repository,), daemon=True, name="compared run")
        thread.start()
        thread.join(SECONDS_TO_WAIT)
        return self._known.get(repository) or ComparedRun(problem="The Hub has not answered yet.")

    def _read_and_release(self, repository: str) -> None:
        try:
            self._read(repository)
        finally:
            self._is_reading.release()

    def _read(self, repository: str) -> None:
        try:
            file = fetch_file(repository, f"{METRICS_FOLDER}/{SUMMARY_FILE}", token=False)
            found = ComparedRun(history=HistoryColumns.from_summary(read_json(file), time.time()))
            if not len(found.history):
                found = ComparedRun(problem="It has published no history yet.")
        except (OSError, ValueError, httpx2.HTTPError) as error:
            found = ComparedRun(problem=explain_error(error))
        self._known.pop(repository, None)
        self._known[repository] = dataclasses.replace(found, read_at=time.monotonic())
        for oldest in list(self._known)[:-MAX_COMPARED]:
            del self._known[oldest]


def read_hub(repository: str, before: HubView) -> HubView:
    """Return the newest view; `before` again, freshened, if the repository has not changed.

    Raises:
        ValueError: there is no such run, or its files are damaged.
        OSError, httpx2.HTTPError: the Hub does not answer.
    """
    snapshot, now = RunSnapshot.read(repository), time.time()
    checkpoints = tagged_epochs(HfApi(), repository)
    is_old = bool(snapshot.run.bucket) and now - before.metrics_at > SECONDS_BETWEEN_METRICS
    if snapshot.commit == before.commit and not is_old:
        return HubView(**{**vars(before), "checkpoints": checkpoints, "read_at": now, "problem": ""})
    # Files are cached by content: of a new commit only the changed shards are downloaded.
    served_files = served_file("*")  # an entry commits them, also where the other metrics are in a bucket
    folder = snapshot.download_matching(f"{REEL_FOLDER}/{REEL_INDEX_FILE}", f"{METRICS_FOLDER}/{served_files}")
    gallery = read_index(folder / REEL_FOLDER)
    run, problem = _run_of(snapshot)
    with published_metrics(snapshot) as metrics:
        return HubView(
            run=run,
            commit=snapshot.commit,
            history=HistoryColumns.from_points(read_history_files(metrics) or read_old_history(snapshot), now),
            evaluations=read_evaluations(metrics),
            figures=read_figures(metrics),
            newest_pass=newest_pass(read_state(metrics / STATE_FILE)),
            contributions=read_contributions(metrics).days,
            served=read_served(*sorted((folder / METRICS_FOLDER).glob(served_files))),
            checkpoints=checkpoints,
            weights_sha256=_weights(snapshot),
            num_layers=snapshot.num_layers,
            pictures={entry["epoch"]: (entry["file"], _time_of(entry)) for entry in gallery},
            prompts=read_prompts(folder / REEL_FOLDER),
            read_at=now,
            metrics_at=now,
            problem=problem,
        )


def _time_of(entry: Mapping[str, Any]) -> float:
    """Return when a picture of the reel was drawn."""
    return float(entry["time"]) if is_number(entry.get("time")) else 0.0


def _run_of(snapshot: RunSnapshot) -> tuple[TrainingRun, str]:
    """Return a run's settings and what is wrong with its entries, of which there are none then."""
    try:
        return snapshot.run_to_enter, ""
    except ValueError as error:
        return snapshot.run.replace(entry_addresses=()), explain_error(error)


def _weights(snapshot: RunSnapshot) -> str | None:
    try:
        return snapshot.weights_sha256
    except ValueError as error:  # not signed by whom the run names: nobody serves it
        logger.warning("The newest checkpoint does not count: %s", error)
        return None


def _with_problem(view: HubView, problem: str) -> HubView:
    return HubView(**{**vars(view), "problem": problem})
