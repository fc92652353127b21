"""Tells a peer that its run was rolled back: a new generation is a new swarm, which this peer must join."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from pipelines.training.repository.snapshot import RunSnapshot
from pipelines.training.run.training_run import TrainingRun

logger = logging.getLogger(__name__)

WATCH_SECONDS = 120.0


class GenerationWatch:
    """Polls the run's settings on the Hub; sets `stop` when they start a new generation."""

    def __init__(self, repository: str, run: TrainingRun, stop: threading.Event) -> None:
        self.found_new_generation = False
        self._repository, self._run, self._stop = repository, run, stop

    def look(self) -> bool:
        """Return whether the run has started a new generation; False while the Hub does not answer."""
        try:
            newest = RunSnapshot.read(self._repository).run
        except (OSError, ValueError) as error:
            logger.debug("The run's settings cannot be read at the moment: %s", error)
            return False
        return newest.generation > self._run.generation

    def watch(self, ended: threading.Event, seconds: float) -> None:
        """Poll at an interval until `ended` is set."""
        while not ended.wait(seconds):
            if self.look():
                self.found_new_generation = True
                self._stop.set()
                return


@contextlib.contextmanager
def watching_generation(
    repository: str, run: TrainingRun, stop: threading.Event, seconds: float = WATCH_SECONDS
) -> Iterator[GenerationWatch]:
    """Watch the run's generation in a thread for the duration of the block."""
    watch, ended = GenerationWatch(repository, run, stop), threading.Event()
    thread = threading.Thread(target=watch.watch, args=(ended, seconds), name="generation-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join(timeout=10)
