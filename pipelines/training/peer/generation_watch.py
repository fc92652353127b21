"""Tells a peer that its run was rolled back, and which keys the run has: both are looked up on the Hub repeatedly.

A new generation is a new swarm, which the peer must join.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator

from pipelines.training.repository.key_list import KeyList, TrustedKeys
from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.training_run import TrainingRun

logger = logging.getLogger(__name__)

WATCH_SECONDS = 120.0


class GenerationWatch:
    """Polls the run's settings and keys on the Hub; sets `stop` when the settings start a new generation."""

    def __init__(self, repository: str, run: TrainingRun, stop: threading.Event, trusted: TrustedKeys) -> None:
        self.found_new_generation = False
        self._repository, self._run, self._stop, self._trusted = repository, run, stop, trusted

    def keys(self) -> KeyList:
        """Return the newest list of the run's keys that can be trusted, at most minutes old; any thread may call it."""
        return self._trusted.newest()

    def look(self) -> bool:
        """Take over the run's keys; return whether it has started a new generation, False while the Hub is away."""
        try:
            newest = RunSnapshot.read(self._repository)
        except (OSError, ValueError) as error:
            logger.debug("The run's settings cannot be read at the moment: %s", error)
            return False
        self._take_keys(newest)
        return self._trusted.accepts(newest.run) and newest.run.generation > self._run.generation

    def _take_keys(self, newest: RunSnapshot) -> None:
        try:
            newest.trusting(self._trusted)
        except (OSError, ValueError) as error:
            logger.warning("The run's keys cannot be read at the moment: %s", error)

    def watch(self, ended: threading.Event, seconds: float) -> None:
        """Poll at an interval until `ended` is set."""
        while not ended.wait(seconds):
            try:
                self.found_new_generation = self.look()
            except Exception as error:  # the peer trains on; without this thread it would not hear of a rollback
                logger.warning("The run's repository cannot be read, next try in %.0f s: %r", seconds, error)
            if self.found_new_generation:
                self._stop.set()
                return


@contextlib.contextmanager
def watching_generation(
    repository: str, run: TrainingRun, stop: threading.Event, trusted: TrustedKeys, seconds: float = WATCH_SECONDS
) -> Iterator[GenerationWatch]:
    """Watch the run's generation and keys in a thread for the duration of the block."""
    watch, ended = GenerationWatch(repository, run, stop, trusted), threading.Event()
    thread = threading.Thread(target=watch.watch, args=(ended, seconds), name="generation-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join(timeout=10)
