"""Threads beside the follow loop: neither a slow Hub nor long readings of the swarm make this peer miss a round."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import httpx2

from pipelines.training.auxiliary.publishing.hub_publisher import HubPublisher, RunRolledBackError
from pipelines.training.repository.commits import HeadMovedError
from pipelines.training.repository.manifest import CheckpointRefusedError

logger = logging.getLogger(__name__)

MAX_FAILURES = 10
SECONDS_BETWEEN_LOOKS = 0.1
"""How often it looks whether a round is due."""


class PublishingThread:
    """Calls `HubPublisher.work` until it is stopped. Use as a context manager."""

    def __init__(self, publisher: HubPublisher, retry_seconds: float) -> None:
        self._publisher, self._retry_seconds = publisher, retry_seconds
        self._stop, self._failures, self._error = threading.Event(), 0, None
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)

    def __enter__(self) -> "PublishingThread":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let the current work finish, and start no more."""
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the thread, if any: a rollback, or a recurring bug."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stop.is_set() and self._error is None:
            self._stop.wait(self._work_once())

    def _work_once(self) -> float:
        try:
            seconds = self._publisher.work()
            self._failures = 0
            return seconds
        except RunRolledBackError as error:
            self._error = error
        except HeadMovedError as error:
            logger.info("%s Checking again.", error)
            return 0.1
        except (OSError, httpx2.HTTPError, CheckpointRefusedError) as error:  # the run continues while the Hub is down
            logger.warning("Nothing could be published, next try in %.0f s: %s", self._retry_seconds, error)
        except Exception as error:
            self._failures += 1
            logger.exception("Publishing failed (%d of %d).", self._failures, MAX_FAILURES)
            if self._failures >= MAX_FAILURES:
                self._error = error
        return self._retry_seconds


class RoundThread:
    """Calls `Anchor.keep_up` until it is stopped or fails. Use as a context manager."""

    def __init__(self, keep_up: Callable[[], None]) -> None:
        self._keep_up = keep_up
        self._stop, self._busy, self._error = threading.Event(), threading.Lock(), None
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)

    def __enter__(self) -> "RoundThread":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the current round to end, and let no other begin in this block."""
        with self._busy:
            yield

    def check(self) -> None:
        """Raise the error that ended the thread, if any: this peer cannot keep up with the swarm."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stop.wait(SECONDS_BETWEEN_LOOKS):
            try:
                with self._busy:
                    self._keep_up()
            except Exception as error:  # the follow loop raises it
                self._error = error
                return
