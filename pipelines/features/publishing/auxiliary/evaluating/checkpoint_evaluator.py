"""Evaluates published checkpoints, one at a time, with `dalle-collab evaluate` in a process of its own.

A checkpoint is kept by hard links while it waits and while it is evaluated, so that nothing is downloaded or copied.
The newest one waits; an older one that has not begun gives way to it.
"""

import json
import logging
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hub_tools.processes.child_process import MOST_CHARACTERS
from hub_tools.processes.process_group import WHOLE_PROGRAM, WORKER_VARIABLE
from hub_tools.run_files import OPTIMIZER_FILE, TRAINING_RUN_FILE
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.auxiliary.evaluating.bounded_command import BoundedCommand
from pipelines.features.publishing.auxiliary.evaluating.evaluation_options import EvaluationOptions
from pipelines.features.publishing.auxiliary.snapshot_tasks import is_due
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, figures_of_report
from pipelines.features.publishing.metrics.run_metrics import RunMetrics

logger = logging.getLogger(__name__)

EVALUATE = (sys.executable, "-m", WHOLE_PROGRAM, "evaluate")
REPORT_FILE = "evaluation.json"
LARGEST_REPORT_BYTES = 2**20
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class EvaluationOutcome:
    """What came of one evaluation."""

    epoch: int
    figures: tuple[CheckpointFigure, ...] = ()
    problem: str | None = None
    """Why there are no figures."""


@dataclass(frozen=True, kw_only=True)
class HeldCheckpoint:
    """A published checkpoint that waits for its evaluation, or is being evaluated."""

    epoch: int
    commit: str
    folder: Path


class CheckpointEvaluator:
    """Takes checkpoints in one thread and is looked at in another. Use as a context manager."""

    def __init__(
        self,
        repository: str,
        run: TrainingRun,
        options: EvaluationOptions,
        *,
        folder: Path,
        metrics: RunMetrics,
        program: Sequence[str] = EVALUATE,
    ) -> None:
        """`folder`: on the disk of the spool; it is emptied. `program` gets the arguments of `evaluate`."""
        self._repository, self._run, self._options, self._metrics = repository, run, options, metrics
        self._folder, self._program, self._lock = folder.resolve(), tuple(program), threading.Lock()
        self._taken_epoch = 0
        self._waiting: HeldCheckpoint | None = None
        self._current: HeldCheckpoint | None = None
        self._command: BoundedCommand | None = None
        self._started = 0.0
        self._left_out: object = None

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)  # what an earlier peer was killed at
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._command is not None:
            self._command.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint waits or is being evaluated."""
        with self._lock:
            return self._waiting is not None or self._current is not None

    @property
    def current_epoch(self) -> int | None:
        """Epoch of the checkpoint that is being evaluated."""
        with self._lock:
            return self._current.epoch if self._current else None

    def take(self, epoch: int, checkpoint: Path, commit: str) -> None:
        """Keep a published checkpoint for evaluation, if one is due; `checkpoint` may be removed afterwards."""
        done = max([self._taken_epoch, *(figure.epoch for figure in self._metrics.figures())])
        if not is_due(epoch, done, self._options.interval_epochs, self._run.num_epochs):
            return
        held = HeldCheckpoint(epoch=epoch, commit=commit, folder=self._folder / f"epoch-{epoch:08d}")
        try:
            link_checkpoint(checkpoint, held.folder / "checkpoint", self._run)
        except OSError as error:
            logger.warning("The checkpoint of epoch %d is published, but cannot be evaluated: %s", epoch, error)
            return
        self._taken_epoch = epoch
        with self._lock:
            given_up, self._waiting = self._waiting, held
        if given_up is not None:
            logger.warning("Epoch %d is not evaluated: epoch %d has come before its turn.", given_up.epoch, epoch)
            shutil.rmtree(given_up.folder, ignore_errors=True)

    def look(self) -> EvaluationOutcome | None:
        """Start what waits, if nothing runs; return what came of an evaluation that has ended since the last call."""
        outcome = None
        if self._command is not None and (code := self._command.exit_code()) is not None:
            outcome = self._end(code)
        with self._lock:
            if self._current is None:
                self._current, self._waiting = self._waiting, None
        if self._current is not None and self._command is None:
            outcome = self._start(self._current) or outcome
        return outcome

    def _start(self, held: HeldCheckpoint) -> EvaluationOutcome | None:
        options = [*self._options.arguments(self._run.task), "--device", self._options.device]
        arguments = [str(held.folder / "checkpoint"), *options]
        self._started = time.monotonic()
        try:
            self._command = BoundedCommand(
                [*self._program, *arguments, "--output", str(held.folder)],
                limit_seconds=self._options.limit_seconds,
                environment=bounded_environment(
                    os.environ, num_threads=self._options.num_threads, device=self._options.device
                ),
                log=self._folder / "evaluation.log",
            )
        except OSError as error:
            return self._failed(held, str(error))
        return None

    def _end(self, code: int) -> EvaluationOutcome:
        command, held = self._command, self._current
        assert command is not None and held is not None, "only what was started ends"
        self._command = None
        if code != 0:
            return self._failed(held, f"it ended with exit code {code}: {command.last_line()}")
        try:
            figures = self._read(held)
        except (OSError, ValueError) as error:
            return self._failed(held, str(error))
        self._metrics.add_figures(figures)
        self._let_go(held)
        return EvaluationOutcome(epoch=held.epoch, figures=tuple(figures))

    def _read(self, held: HeldCheckpoint) -> list[CheckpointFigure]:
        path = held.folder / REPORT_FILE
        if path.stat().st_size > LARGEST_REPORT_BYTES:
            raise ValueError(f"The evaluation's report has {path.stat().st_size} bytes.")
        report = json.loads(path.read_text(encoding="utf-8"))
        command = public_command(self._repository, held.commit, self._options, self._run.task)
        how = dict(command=command, now=time.time(), seconds=time.monotonic() - self._started)
        figures = figures_of_report(report, epoch=held.epoch, commit=held.commit, **how)
        if not figures:
            raise ValueError("The evaluation's report has no figures.")
        self._tell_what_is_missing(report.get("left_out"))
        return figures

    def _tell_what_is_missing(self, left_out: object) -> None:
        """Log which figures an evaluation could not compute, unless the last one could not either."""
        if left_out != self._left_out:
            self._left_out = left_out
            logger.info("Not evaluated: %s", str(left_out)[:MOST_CHARACTERS])

    def _failed(self, held: HeldCheckpoint, problem: str) -> EvaluationOutcome:
        logger.warning("The evaluation of epoch %d has failed: %s", held.epoch, problem)
        self._let_go(held)
        return EvaluationOutcome(epoch=held.epoch, problem=problem)

    def _let_go(self, held: HeldCheckpoint) -> None:
        shutil.rmtree(held.folder, ignore_errors=True)
        with self._lock:
            self._current = None


def link_checkpoint(checkpoint: Path, folder: Path, run: TrainingRun) -> None:
    """Make a folder that `dalle-collab evaluate` reads: hard links to a checkpoint's files, with the run's settings.

    The optimizer state is left out. Raises OSError if the disk is full or the folders are on two.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != OPTIMIZER_FILE):
        target = folder / path.relative_to(checkpoint)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    (folder / TRAINING_RUN_FILE).write_text(run.to_json(), encoding="utf-8")


def public_command(repository: str, commit: str, options: EvaluationOptions, task: str) -> str:
    """Return the command with which anybody computes the figures again."""
    return shlex.join(["dalle-collab", "evaluate", repository, "--revision", commit, *options.arguments(task)])


def bounded_environment(environment: Mapping[str, str], *, num_threads: int, device: str) -> dict[str, str]:
    """Return the environment of a command beside a peer: it has so many threads and sees a GPU only if it may."""
    bounds = dict.fromkeys(THREAD_VARIABLES, str(num_threads)) | {"NO_COLOR": "1"}
    if device == "cpu":
        bounds["CUDA_VISIBLE_DEVICES"] = ""
    return {name: value for name, value in environment.items() if name != WORKER_VARIABLE} | bounds
