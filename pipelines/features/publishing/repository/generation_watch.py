"""Tells a peer that its run was rolled back or is over, and which keys it has: looked up on the Hub repeatedly.

A new generation is a new swarm, which the peer must join. A run is over when its last epoch is published: a trainer
need not hear so from others, who may have left.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.repository.key_list import KeyList, TrustedKeys
from pipelines.features.publishing.repository.snapshot import RunSnapshot

logger = logging.getLogger(__name__)

WATCH_SECONDS = 120.0
SECONDS_AT_THE_END = 5.0
"""How often a peer looks that has reached the last epoch, or for which the others have."""


class GenerationWatch:
    """Polls the run's settings and keys on the Hub; sets `stop` when the settings start a new generation."""

    def __init__(
        self,
        repository: str,
        run: TrainingRun,
        stop: threading.Event,
        trusted: TrustedKeys,
        is_ending: Callable[[], bool] | None = None,
    ) -> None:
        """`is_ending` tells when to look more often; `stop` is then also set when the last epoch is published."""
        self.found_new_generation = self.is_over = False
        self._repository, self._run, self._stop, self._trusted = repository, run, stop, trusted
        self._is_ending = is_ending

    def keys(self) -> KeyList:
        """Return the newest list of the run's keys that can be trusted, at most minutes old; any thread may call it."""
        return self._trusted.newest()

    def look(self) -> bool:
        """Take over the run's keys; return whether it has started a new generation, False while the Hub is away.

        Afterwards `is_over` tells whether the last epoch is published, with the signature of one of the publishers.
        """
        try:
            newest = RunSnapshot.read(self._repository)
        except (OSError, ValueError) as error:
            logger.debug("The run's settings cannot be read at the moment: %s", error)
            return False
        newest = self._take_keys(newest)
        self.is_over = self._published_epoch(newest) >= self._run.num_epochs
        return self._trusted.accepts(newest.run) and newest.run.generation > self._run.generation

    def _take_keys(self, newest: RunSnapshot) -> RunSnapshot:
        try:
            return newest.trusting(self._trusted)
        except (OSError, ValueError) as error:
            logger.warning("The run's keys cannot be read at the moment: %s", error)
            return newest

    def _published_epoch(self, newest: RunSnapshot) -> int:
        """Return the epoch of the newest checkpoint of this generation that those have signed whom this peer trusts."""
        try:
            manifest = newest.manifest_under(self.keys())
        except (OSError, ValueError) as error:
            logger.debug("What is published cannot be read at the moment: %s", error)
            return 0
        return manifest.epoch if manifest is not None else 0

    def watch(self, ended: threading.Event, seconds: float) -> None:
        """Poll at an interval until `ended` is set, and more often while the run `is_ending`."""
        next_look = time.monotonic() + seconds
        while not ended.wait(min(seconds, SECONDS_AT_THE_END)):
            if time.monotonic() < next_look and not (self._is_ending is not None and self._is_ending()):
                continue
            next_look = time.monotonic() + seconds
            try:
                self.found_new_generation = self.look()
            except Exception as error:  # the peer trains on; without this thread it would not hear of a rollback
                logger.warning("The run's repository cannot be read, next try in %.0f s: %r", seconds, error)
            if self.found_new_generation:
                self._stop.set()
                return
            if self.is_over and self._is_ending is not None:
                logger.info("The run is over: its last epoch, %d, is published.", self._run.num_epochs)
                self._stop.set()
                return


@contextlib.contextmanager
def watching_generation(
    repository: str,
    run: TrainingRun,
    stop: threading.Event,
    trusted: TrustedKeys,
    seconds: float = WATCH_SECONDS,
    is_ending: Callable[[], bool] | None = None,
) -> Iterator[GenerationWatch]:
    """Watch the run's generation and keys in a thread for the duration of the block; see `GenerationWatch`."""
    watch, ended = GenerationWatch(repository, run, stop, trusted, is_ending), threading.Event()
    thread = threading.Thread(target=watch.watch, args=(ended, seconds), name="generation-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join(timeout=10)
