"""What the auxiliary peer does with copies of the model in a separate thread: evaluation and the progress reel."""

import copy
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

logger = logging.getLogger(__name__)

MAX_FAILURES = 10


@dataclass(frozen=True, kw_only=True)
class SnapshotTask:
    """One thing to do with the model every few epochs."""

    name: str
    interval: int
    """Epochs between two runs."""

    work: Callable[[int, torch.nn.Module], None]
    """Gets the epoch and its own copy of the model."""

    rest: float = 0.0
    """Seconds without it for each second that it took, but at the run's end: what is for display is to cost little."""


def is_due(epoch: int, done_epoch: int, interval: int, last_epoch: int) -> bool:
    """Tell whether a task is due at an epoch: every `interval` epochs, at the first chance, and at the run's end."""
    if epoch <= done_epoch or epoch == 0:
        return False
    return epoch >= last_epoch or epoch // interval > done_epoch // interval


class SnapshotWorker:
    """Runs tasks one after the other. While it is busy, it accepts none: the follow loop never waits for it.

    Use as a context manager; at its end it sets `stopping`, for tasks that can stop half-way, and waits.
    """

    def __init__(self, tasks: dict[SnapshotTask, int], stopping: threading.Event | None = None) -> None:
        self._done, self._stopping = dict(tasks), stopping or threading.Event()
        self._failures = 0
        self._rests_until: dict[SnapshotTask, float] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "SnapshotWorker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self.wait()

    def wait(self) -> None:
        """Wait until the running task has ended."""
        if self._thread is not None:
            self._thread.join()

    def is_busy(self) -> bool:
        """Tell whether a task is running."""
        return self._thread is not None and self._thread.is_alive()

    def due(self, epoch: int, last_epoch: int) -> list[SnapshotTask]:
        """Return the tasks that are due at an epoch; none while one is running."""
        if self.is_busy() or self._failures >= MAX_FAILURES:
            return []
        now = time.monotonic()
        return [
            task
            for task, done in self._done.items()
            if is_due(epoch, done, task.interval, last_epoch)
            and (epoch >= last_epoch or now >= self._rests_until.get(task, now))
        ]

    def start(self, tasks: list[SnapshotTask], epoch: int, model: torch.nn.Module) -> None:
        """Run tasks with a copy of the model, which is made before this returns."""
        snapshot = copy.deepcopy(model).eval()
        for task in tasks:
            self._done[task] = epoch
        self._thread = threading.Thread(target=self._run, args=(tasks, epoch, snapshot), name="snapshot-work")
        self._thread.start()

    @torch.no_grad()
    def _run(self, tasks: list[SnapshotTask], epoch: int, model: torch.nn.Module) -> None:
        for task in tasks:
            started = time.monotonic()
            try:
                task.work(epoch, model)
                logger.info("%s of epoch %d took %.1f s.", task.name, epoch, time.monotonic() - started)
            except Exception:  # what is only for display must not end the run
                self._failures += 1
                logger.exception("%s of epoch %d failed (%d of %d).", task.name, epoch, self._failures, MAX_FAILURES)
            ended = time.monotonic()
            self._rests_until[task] = ended + task.rest * (ended - started)
