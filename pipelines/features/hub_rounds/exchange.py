"""A peer's files of one round, in a thread of its own while the peer trains on: its contribution out, the list in."""

import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import signed_text
from pipelines.features.hub_rounds.closing import NextRound, next_deadline
from pipelines.features.hub_rounds.files import HubAwayError
from pipelines.features.hub_rounds.reading import IncompleteError, RoundReader
from pipelines.features.hub_rounds.statements import Pointer
from pipelines.features.hub_rounds.stepping import ClosedRound

logger = logging.getLogger(__name__)

SECONDS_OF_GRACE = 1.0
"""From the deadline until pointers are read: the Hub tells its time in whole seconds, and clocks here are as exact."""

SECONDS_BEFORE_BYTES = 2.5
"""From the deadline until a contribution's bytes may be seen: no pointer to a copy of them can be in time."""

LEAST_SECONDS_FOR_BYTES, SECONDS_FOR_BYTES = 5.0, 30.0
"""From the deadline until they must be there: a third of the window, within these limits."""

MARGIN, MOST_OF_A_WINDOW = 1.5, 2 / 3
"""A pointer is sent so many times as long before its deadline as the last one took; never longer than this share."""

SECONDS_TO_CLOSE = 2.0
"""From when all bytes must be there until the list is."""

FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH = 3.0, 60.0, 1.3
SECONDS_BETWEEN_TRIES = 2.0
SECONDS_BETWEEN_WORDS = 60.0
KEPT_OFFERS = 2


def seconds_for_bytes(window_seconds: float) -> float:
    """Return how long after the deadline the bytes of a contribution must be there."""
    return min(SECONDS_FOR_BYTES, max(LEAST_SECONDS_FOR_BYTES, window_seconds / 3))


def polls(window_seconds: float) -> Iterator[float]:
    """Yield the seconds to wait before each look for a round's list after its deadline; always longer, to a limit."""
    seconds, longest = min(FIRST_POLL_SECONDS, window_seconds / 8), min(LONGEST_POLL_SECONDS, window_seconds / 4)
    while True:
        yield seconds
        seconds = min(seconds * POLL_GROWTH, longest)


class RoundStillOpenError(Exception):
    """A window has passed, nobody has closed its round, and this peer's contribution is not among those that wait."""


@dataclass(frozen=True, kw_only=True)
class ContributionOffer:
    """A contribution that its peer offers to a round."""

    pointer: Pointer
    content: bytes


class RoundExchange:
    """Offers contributions and waits for lists, one round at a time. Close it, and it ends at the next answer."""

    def __init__(self, reader: RoundReader, user: str, key: PublisherKey, window_seconds: float) -> None:
        self._reader, self._files, self._key, self._window = reader, reader.files, key, window_seconds
        self._bucket = reader.files.bucket_of(user)
        self._executor = ThreadPoolExecutor(1, "round exchange")
        self._stop = threading.Event()
        self._future: Future[ClosedRound | None] | None = None
        self._offers: list[str] = []
        self.publish_seconds = 5.0
        """How long it took to put the last pointer."""

    def begin(
        self,
        terms: NextRound,
        deadline: float,
        offer: ContributionOffer | None,
        on_closed: Callable[[ClosedRound], object] = lambda _closed: None,
    ) -> None:
        """Offer a contribution to a round, if there is one, and wait for its list; `deadline` by the Hub's clock.

        Without one, and where the Hub did not take it, the wait ends in time for an offer to the round's next window.
        `on_closed` is called with the round in this object's thread; what it raises, `outcome` raises.
        """
        assert self._future is None, "one round at a time"
        self._future = self._executor.submit(self._exchange, terms, deadline, offer, on_closed)

    @property
    def is_under_way(self) -> bool:
        """Whether a round was begun whose outcome nobody has taken."""
        return self._future is not None

    def outcome(self, most_seconds: float = 0.0) -> ClosedRound | None:
        """Return the round that was begun, once it is closed; None: not yet, within so many seconds.

        Raises:
            RoundStillOpenError: offer it again, to the round's next window.
            OtherStateError, OSError: as `RoundReader.closed_round`, except that it waits while the Hub is away.
            FalseListError: as what `begin` was given raises it.
        """
        if self._future is None or not wait([self._future], most_seconds).done:
            return None
        future, self._future = self._future, None
        return future.result()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _exchange(
        self,
        terms: NextRound,
        deadline: float,
        offer: ContributionOffer | None,
        on_closed: Callable[[ClosedRound], object],
    ) -> ClosedRound | None:
        is_there = False
        if offer is not None and self._put_pointer(offer, deadline):
            self._wait_until(deadline + SECONDS_BEFORE_BYTES)
            is_there = self._put_bytes(offer, deadline + seconds_for_bytes(self._window))
        self._wait_until(deadline)
        # Nobody closes a round to which nobody has offered anything, as where the Hub was away at its deadline.
        next_one = next_deadline(deadline, self._window, max(self._files.clock(), deadline + SECONDS_OF_GRACE))
        until = math.inf if is_there else self.moment_to_offer(next_one, is_later_window=True)
        if (closed := self._wait_for_list(terms, deadline, until)) is not None:
            on_closed(closed)
        return closed

    def moment_to_offer(self, deadline: float, *, is_later_window: bool) -> float:
        """Return when to put a contribution to the window that ends at this deadline.

        A later window of a round begins with the end of the one before, after which the round may still be closed.
        """
        lead = min(MARGIN * self.publish_seconds + SECONDS_OF_GRACE, MOST_OF_A_WINDOW * self._window)
        if not is_later_window:
            return deadline - lead
        closing = min(seconds_for_bytes(self._window) + SECONDS_TO_CLOSE, self._window - 2 * SECONDS_OF_GRACE)
        return max(deadline - lead, deadline - self._window + closing)

    def _put_pointer(self, offer: ContributionOffer, deadline: float) -> bool:
        started = self._files.clock()
        text = signed_text(dataclasses.replace(offer.pointer, key=self._key.public), self._key)
        if not self._put({self._files.pointer_path: text}, deadline):
            logger.warning("The contribution to round %d was too late for its deadline.", offer.pointer.round)
            return False
        self.publish_seconds = max(1.0, self._files.clock() - started)
        return True

    def _put_bytes(self, offer: ContributionOffer, until: float) -> bool:
        path = self._files.offer_path(offer.pointer.round, offer.pointer.digest)
        old = self._offers[:-KEPT_OFFERS]
        if not self._put({path: offer.content}, until, delete=old):
            logger.warning("The bytes of the contribution to round %d came too late.", offer.pointer.round)
            return False
        self._offers = [*self._offers[len(old) :], path]
        return True

    def _put(self, files: dict[str, bytes], until: float, *, delete: list[str] | None = None) -> bool:
        """Put files by a time of the Hub's clock, however often it takes; OSError if the Hub refuses."""
        while not self._stop.is_set():
            try:
                self._files.put(self._bucket, files, delete=delete)
                return True
            except HubAwayError as error:
                logger.warning("The Hub did not take a file: %s", error)
                if self._files.clock() + SECONDS_BETWEEN_TRIES > until:
                    return False
                self._stop.wait(SECONDS_BETWEEN_TRIES)
        return False

    def _wait_until(self, moment: float) -> None:
        while (rest := moment - self._files.clock()) > 0 and not self._stop.wait(min(rest, 1.0)):
            pass

    def _wait_for_list(self, terms: NextRound, deadline: float, until: float) -> ClosedRound | None:
        is_long_past = self._files.clock() > deadline + seconds_for_bytes(self._window)
        said_at = SECONDS_BETWEEN_WORDS
        for seconds in chain([0.0] if is_long_past else [], polls(self._window)):
            if self._stop.wait(min(seconds, max(0.0, until - self._files.clock()))):
                return None
            waited = self._files.clock() - deadline
            try:
                # The next publisher of the list is heard once the one before it is late.
                found = self._reader.closed_round(terms, 1 + int(waited / takeover_seconds(self._window)))
            except (HubAwayError, IncompleteError) as error:
                found = None
                if waited >= said_at:
                    logger.warning("Waiting for round %d; training goes on. %s", terms.round, error)
                    said_at = waited + 5 * SECONDS_BETWEEN_WORDS
            if found is not None:
                return found
            if self._files.clock() >= until:
                raise RoundStillOpenError
        raise AssertionError("unreachable")


def takeover_seconds(window_seconds: float) -> float:
    """Return how long after a deadline the next publisher of the run's keys closes a round that is still open."""
    return max(2 * seconds_for_bytes(window_seconds), 20.0)
