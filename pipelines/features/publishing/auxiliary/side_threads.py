"""Threads beside the follow loop: neither a slow Hub nor long readings of the swarm make this peer miss a round."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import httpx2

from hub_tools.one_line_errors import explain_error
from hub_tools.publishing.commits import HeadMovedError
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher, RunRolledBackError
from pipelines.features.publishing.repository.manifest import CheckpointRefusedError

logger = logging.getLogger(__name__)

MAX_FAILURES = 10
SECONDS_BETWEEN_LOOKS = 0.1
"""How often it looks whether a round is due."""

LONGEST_PAUSE_SECONDS = 60.0
"""Between two attempts to keep up with the swarm that fail."""


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
            said = explain_error(error)
            logger.warning("Nothing could be published, next try in %.0f s: %s", self._retry_seconds, said)
        except Exception as error:
            self._failures += 1
            logger.exception("Publishing failed (%d of %d).", self._failures, MAX_FAILURES)
            if self._failures >= MAX_FAILURES:
                self._error = error
        return self._retry_seconds


class RoundThread:
    """Calls `Anchor.keep_up` until it is stopped, or has failed too often in a row. Use as a context manager.

    A failure is tried again after ever longer pauses. Whoever gives up stays what else it is: an entry, a publisher.
    """

    def __init__(
        self, keep_up: Callable[[], None], pauses: tuple[float, float] = (SECONDS_BETWEEN_LOOKS, LONGEST_PAUSE_SECONDS)
    ) -> None:
        """`pauses`: seconds between two calls, and at most after failures."""
        self._keep_up, (self._pause, self._longest) = keep_up, pauses
        self._stop, self._busy, self.num_failures = threading.Event(), threading.Lock(), 0
        """Calls that have failed in a row."""

        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)

    def __enter__(self) -> "RoundThread":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def is_stopping(self) -> bool:
        """Tell whether no further call will be made."""
        return self._stop.is_set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the current round to end, and let no other begin in this block."""
        with self._busy:
            yield

    def _run(self) -> None:
        while not self._stop.wait(min(self._longest, self._pause * 4**self.num_failures)):
            try:
                with self._busy:
                    self._keep_up()
                self.num_failures = 0
            except Exception as error:  # of the swarm or the anchor: an entry and a publisher are needed all the same
                self.num_failures += 1
                logger.warning(
                    "Keeping up with the swarm failed (%d of %d): %r", self.num_failures, MAX_FAILURES, error
                )
                logger.debug("Keeping up failed.", exc_info=True)
            if self.num_failures >= MAX_FAILURES:
                logger.error(
                    "This peer takes no part in rounds any more, and signs nothing: that has failed %d times in a row. "
                    "It remains an entry, and publishes what it holds. Start it again to have all of it.",
                    MAX_FAILURES,
                )
                return
