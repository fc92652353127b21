"""What a visitor of the joining page is told of a run before joining it, as far as the run has published it."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from PIL import Image

from hub_tools.checks import is_number
from hub_tools.counted import duration, file_size, memory_size
from hub_tools.foreign.json_texts import read_json
from hub_tools.printing.printable import one_line
from hub_tools.run_files import REEL_FOLDER, REEL_INDEX_FILE, SUMMARY_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.bandwidth.estimate import round_bytes
from pipelines.features.memory_estimate.estimate import estimate_training_memory
from pipelines.features.memory_estimate.run_memory import run_settings, run_sizes
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.history import (
    published_metrics,
    read_history_files,
    read_old_history,
)
from pipelines.features.publishing.metrics.run_state import RunCondition, RunFacts, condition_by, condition_of
from pipelines.features.publishing.metrics.sample_gallery import read_index
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.tasks.text_to_image.generation.uploaded_picture import read_picture

USERNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
MOST_NAMES, LONGEST_SHOWN = 5, 30
MOST_COUNT = 10**15


@dataclass(frozen=True, kw_only=True, eq=False)
class RunProfile:
    """A run as it was published at one time. Texts in `board` come from strangers."""

    repository: str
    condition: RunCondition
    run: TrainingRun | None = None
    """None: it cannot be read."""

    board: Mapping[str, object] = field(default_factory=dict)
    """The published summary."""

    picture: Image.Image | None = None
    """The newest of the reel: a row of pictures for each caption."""

    picture_epoch: int = 0

    costs: Mapping[str, str] = field(default_factory=dict)
    """What a peer takes of a machine, in words; empty if the run's model is not known."""

    @classmethod
    def read(cls, repository: str, now: float) -> Self:
        """Read it from the Hub; what is missing or damaged besides the settings is left out.

        Raises OSError, ValueError or httpx2.HTTPError if the settings cannot be read.
        """
        snapshot = RunSnapshot.read(repository)
        board, history = {}, list[EpochSummary]()
        with contextlib.suppress(OSError, ValueError), published_metrics(snapshot) as folder:
            if isinstance(found := read_json(folder / SUMMARY_FILE), dict):
                board = found
            history = read_history_files(folder) or read_old_history(snapshot)
        picture, epoch = None, 0
        with contextlib.suppress(OSError, ValueError):
            picture, epoch = _newest_picture(snapshot)
        return cls(
            repository=repository,
            condition=condition_by(snapshot, history, now=now),
            run=snapshot.run,
            board=board,
            picture=picture,
            picture_epoch=epoch,
            costs=costs_of(snapshot.run, board),
        )

    @classmethod
    def unreachable(cls, repository: str, reason: str) -> Self:
        """Return what is known of a run that cannot be read."""
        condition = condition_of(RunFacts(num_epochs=None), repository, now=0.0)
        return cls(repository=repository, condition=replace(condition, sentence=f"{condition.sentence} {reason}"))

    def contributors(self, span: str) -> list[tuple[str, int]]:
        """Return the names that could be users', with samples of `today`, `week` or `all`, most first."""
        rows = self.board.get("leaderboard")
        found = [
            (str(row["username"]), int(row[f"samples_{span}"]))
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, dict)
            and USERNAME.fullmatch(str(row.get("username")))
            and is_number(row.get(f"samples_{span}"))
            and 0 < row[f"samples_{span}"] < MOST_COUNT
        ]
        return sorted(found, key=lambda one: -one[1])

    def who_trains(self) -> str:
        """Say who has contributed today."""
        names, unit = self.contributors("today"), self.run.unit if self.run else "samples"
        if not names:
            return "Nobody has contributed today yet."
        shown = ", ".join(
            f"{one_line(name, LONGEST_SHOWN)} ({samples:,} {unit})" for name, samples in names[:MOST_NAMES]
        )
        others = len(names) - MOST_NAMES
        return shown + (f" and {others:,} more" if others > 0 else "")

    def seen_by_others(self) -> str:
        """Say what joining shows to others."""
        where = (
            f"your contributions, in a bucket on the Hub named after {self.repository} and you"
            if self.run and self.run.wire == "hub"
            else "to the other peers your IP address"
        )
        return f"your user name, your device's name, your speed and how much you have contributed; {where}"


def _newest_picture(snapshot: RunSnapshot) -> tuple[Image.Image | None, int]:
    index = snapshot.download(f"{REEL_FOLDER}/{REEL_INDEX_FILE}")
    entry = None if index is None else max(read_index(index.parent), key=lambda one: one["epoch"], default=None)
    path = entry and snapshot.download(f"{REEL_FOLDER}/{entry['file']}")
    return (read_picture(path), entry["epoch"]) if entry and path else (None, 0)


def costs_of(run: TrainingRun, board: Mapping[str, object]) -> dict[str, str]:
    """Return what a peer of a run takes of a machine, in words, by the run's settings and its published summary."""
    try:
        sizes = run_sizes(run)
        gpu = estimate_training_memory(sizes, run_settings(run, micro_batch_size=1, precision="fp16"))
        cpu = estimate_training_memory(sizes, run_settings(run, micro_batch_size=1, device="cpu"))
    except ValueError as error:
        return {"memory": f"not known: {error}"}
    pace = _seconds_of_round(run, board)
    return {
        "memory": f"at least {memory_size(gpu.gpu.total)} of a GPU and {memory_size(gpu.ram.total)} of RAM, or "
        f"{memory_size(cpu.ram.total)} of RAM without a GPU; more where it makes the machine faster",
        "network": f"{file_size(round_bytes(run, gpu.num_parameters))} sent in each round"
        + (", to the Hub" if run.wire == "hub" else ", and up to as much again for the others")
        + (f"; a round every {duration(pace)}" if pace else ""),
        "processor": "all of its time; a share of it, hours and GPU memory can be set under Limits",
    }


def _seconds_of_round(run: TrainingRun, board: Mapping[str, object]) -> float:
    """Return what passes from round to round; 0: not known."""
    if run.wire == "hub":
        return run.window_seconds
    usual = board.get("usual_epoch_seconds")
    return float(usual) if is_number(usual) and 0 < usual < 1e7 else 0.0
