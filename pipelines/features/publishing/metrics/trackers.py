"""The run's figures for experiment trackers, through accelerate: Weights & Biases, trackio, TensorBoard."""

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure
from pipelines.features.publishing.metrics.stalls import StallNews, stall_sentence

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

TRACKERS = ("wandb", "trackio", "tensorboard")
"""Tracker names, with the module to import and the package to install."""

FIGURES = (
    "loss",
    "num_peers",
    "samples_per_second",
    "share_averaged",
    "epoch_seconds",
    "round_seconds",
    "bytes_sent",
    "num_refused_gradients",
)


def check_trackers(names: Sequence[str]) -> None:
    """Raise ValueError for a tracker that is unknown or not installed, with the command that installs it.

    Trackers that were registered with accelerate are known too.
    """
    for name in names:
        if name in TRACKERS and importlib.util.find_spec(name) is None:
            raise ValueError(f"--tracker {name} needs a package that is not installed: pip install {name}")
        if name not in TRACKERS and name not in _known_to_accelerate():
            raise ValueError(f"--tracker is {name!r}; expected one of {', '.join(TRACKERS)}.")


class Trackers:
    """Sends every epoch's figures to trackers. Use as a context manager; without names it does nothing."""

    def __init__(self, names: Sequence[str], run: TrainingRun, folder: Path) -> None:
        check_trackers(names)
        self._names, self._run, self._folder = tuple(names), run, folder
        self._last_epoch = 0

    def __enter__(self) -> "Trackers":
        self._trackers = [self._start(name) for name in self._names]
        return self

    def __exit__(self, *exception: object) -> None:
        for tracker in self._trackers:
            tracker.finish()

    def log_epoch(self, summary: EpochSummary) -> None:
        """Log an epoch's figures, once."""
        if summary["epoch"] > self._last_epoch:
            self._last_epoch = summary["epoch"]
            self._log({name: value for name, value in summary.items() if name in FIGURES}, summary["epoch"])

    def log_evaluation(self, epoch: int, loss: float) -> None:
        """Log the loss on held-out records."""
        self._log({"held_out_loss": loss, "evaluated_epoch": epoch}, max(epoch, self._last_epoch))

    def log_figures(self, figures: Sequence[CheckpointFigure]) -> None:
        """Log an evaluation of a checkpoint."""
        epoch = figures[0].epoch
        self._log({f"checkpoint/{one.name}": one.value for one in figures} | {"evaluated_epoch": epoch},
                  max(epoch, self._last_epoch))  # fmt: skip

    def log_stall(self, news: StallNews) -> None:
        """Log that the run has stalled or goes on, as an alert where the tracker has those (trackio, wandb)."""
        self._log({"stalled": int(not news.has_ended)}, max(news.epoch, self._last_epoch))
        title = f"{self._run.run_id} goes on" if news.has_ended else f"{self._run.run_id} has stalled"
        for tracker in self._trackers:
            if callable(alert := getattr(tracker.tracker, "alert", None)):
                alert(title=title, text=stall_sentence(news))

    def _log(self, values: Mapping[str, object], step: int) -> None:
        for tracker in self._trackers:
            tracker.log(values, step=step)

    def _start(self, name: str) -> "GeneralTracker":
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # accelerate's trackers ask it which process they are in
        kind = LOGGER_TYPE_TO_CLASS[name]
        where = [self._folder] if kind.requires_logging_directory else []
        tracker = kind(self._run.run_id, *where)
        tracker.start()
        tracker.store_init_configuration(_settings(self._run))
        return tracker


def _known_to_accelerate() -> Collection[str]:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    return LOGGER_TYPE_TO_CLASS.keys()


def _settings(run: TrainingRun) -> dict[str, int | float | str]:
    """Return the run's settings that every tracker can show: numbers and strings."""
    return {name: value for name, value in vars(run).items() if isinstance(value, (int, float, str))}
