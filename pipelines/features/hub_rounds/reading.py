"""Reading closed rounds from the Hub: what peers, newcomers, further closers and auditors do alike."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from pipelines.core.signing.signed_statement import StatementRefusedError, read_statement
from pipelines.features.hub_rounds.closing import NextRound, fault_of
from pipelines.features.hub_rounds.files import RoundFiles
from pipelines.features.hub_rounds.statements import RoundList, fingerprint
from pipelines.features.hub_rounds.stepping import ClosedRound, FalseListError, ReplayedState

logger = logging.getLogger(__name__)

FILES_AT_ONCE = 8
PATIENCE_SECONDS = 20.0
"""For how long a list may name contributions that are not there before it is false: they are put before the list."""


class OtherStateError(ValueError):
    """The publisher that comes first has gone on from another state than this process has."""


class IncompleteError(OSError):
    """A list names a contribution that the run's bucket does not have, or not yet."""


class RoundReader:
    """Takes lists and their contributions. `publishers` returns the keys of those who may close rounds, in order."""

    def __init__(self, files: RoundFiles, most_members: int, publishers: Callable[[], Iterable[str]]) -> None:
        self.files, self._most_members, self._publishers = files, most_members, publishers
        self._newest: dict[str, tuple[str, RoundList]] = {}
        self.liars: dict[str, int] = {}
        """Keys that have signed a false list, and of which round: from that on they close none for this process."""

        self._incomplete_since: dict[tuple[str, int], float] = {}

    def publishers(self, number: int | None = None) -> list[str]:
        """Return the keys of those whose lists of a round count, in order; None: of all rounds to come."""
        return [
            key
            for key in self._publishers()
            if key not in self.liars or (number is not None and number < self.liars[key])
        ]

    def newest(self, key: str) -> RoundList | None:
        """Return the newest list of a publisher; None: there is none, or what is there is not its own.

        Raises what `RoundFiles.take` raises.
        """
        etag, known = self._newest.get(key, ("", None))
        try:
            found = self.files.take(
                self.files.run_bucket, self.files.list_path(fingerprint(key), None), RoundList.MOST_BYTES, etag=etag
            )
        except ValueError as error:
            logger.warning("A list of a round is passed over: %s.", error)
            return None
        if found is None:
            return known
        if (read := self._read(found.content, key)) is not None:
            self._newest[key] = (found.etag, read)
        return read

    def present(self, state: str = "") -> RoundList | None:
        """Return the newest list that led to this state, or else of the first publisher that has one."""
        lists = [found for key in self.publishers() if (found := self.newest(key)) is not None]
        return next((one for one in lists if one.state == state), next(iter(lists), None))

    def list_of(self, key: str, number: int) -> RoundList | None:
        """Return a publisher's list of a round; None, and raises, as `newest`."""
        path = self.files.list_path(fingerprint(key), number)
        try:
            found = self.files.take(self.files.run_bucket, path, RoundList.MOST_BYTES)
        except ValueError as error:
            logger.warning("A list of a round is passed over: %s.", error)
            return None
        return None if found is None else self._read(found.content, key)

    def closed_round(self, terms: NextRound, most_publishers: int | None = None) -> ClosedRound | None:
        """Return the round that these terms are of, if one of the first so many publishers has closed it.

        Raises:
            OtherStateError: a publisher before it has gone on from another state.
            IncompleteError: a contribution is missing.
            HubAwayError, OSError: the Hub does not answer, or refuses.
        """
        own, agrees = self.publishers()[:most_publishers], False
        for key in self.publishers(terms.round):
            if key not in own and key not in self.liars:
                continue
            try:
                closed, agrees = self._list_of(key, terms), agrees or self._has_led_to(key, terms)
            except OtherStateError:
                if agrees:  # with a publisher that comes before this one
                    continue
                raise
            if closed is None:
                continue
            if (fault := fault_of(closed, terms, self._most_members)) is None:
                try:
                    return ClosedRound(closed=closed, contents=self._contents(closed))
                except IncompleteError as error:
                    if not self._is_incomplete_for_good(closed):
                        raise
                    fault = str(error)
            self.accuse(key, fault, terms.round)
        return None

    def accuse(self, key: str, fault: str, number: int) -> None:
        """Let a publisher's lists no longer count, from that of this round on."""
        logger.warning("The publisher %s of this run has closed a round falsely: %s.", fingerprint(key), fault)
        self.liars[key] = min(number, self.liars.get(key, number))

    def _has_led_to(self, key: str, terms: NextRound) -> bool:
        _, newest = self._newest.get(key, ("", None))
        return newest is not None and (newest.round, newest.state) == (terms.round - 1, terms.state)

    def _is_incomplete_for_good(self, closed: RoundList) -> bool:
        """Return whether contributions have been missing for long; those of rounds long past nobody keeps."""
        _, newest = self._newest[closed.key]
        since = self._incomplete_since.setdefault((closed.key, closed.round), time.monotonic())
        return time.monotonic() > since + PATIENCE_SECONDS and newest.round - closed.round < self.files.kept_rounds

    def _list_of(self, key: str, terms: NextRound) -> RoundList | None:
        _, newest = self._newest.get(key, ("", None))
        if newest is None or newest.round <= terms.round:  # else there is another one to take
            newest = self.newest(key)
        if newest is None or newest.round < terms.round - 1:
            return None
        if newest.round == terms.round - 1:
            if newest.state != terms.state:
                raise OtherStateError(
                    f"round {newest.round} of the publisher {fingerprint(key)} led to the state {newest.state[:12]}; "
                    f"this process has {terms.state[:12]}"
                )
            return None
        closed = newest if newest.round == terms.round else self.list_of(key, terms.round)
        if closed is not None and closed.previous != terms.state:
            raise OtherStateError(
                f"round {closed.round} of the publisher {fingerprint(key)} goes on from the state "
                f"{closed.previous[:12]}; this process has {terms.state[:12]}"
            )
        return closed

    def _read(self, content: bytes, key: str) -> RoundList | None:
        try:
            read = read_statement(RoundList, content)
        except StatementRefusedError as error:
            logger.warning("A list of a round is passed over: %s.", error)
            return None
        return read if read.key == key else None

    def _contents(self, closed: RoundList) -> tuple[bytes, ...]:
        def take(digest: str, size: int) -> bytes:
            try:
                found = self.files.take(self.files.run_bucket, self.files.copy_path(closed.round, digest), size)
            except ValueError:
                found = None  # longer than it may be
            if found is None or hashlib.sha256(found.content).hexdigest() != digest:
                raise IncompleteError(f"the contribution {digest[:12]} to round {closed.round} is not there")
            return found.content

        wanted: Mapping[str, int] = {member.pointer.digest: member.pointer.size for member in closed.members}
        with ThreadPoolExecutor(FILES_AT_ONCE, "contributions") as executor:
            return tuple(executor.map(take, wanted.keys(), wanted.values()))


def follow(
    reader: RoundReader, state: ReplayedState, found: ClosedRound, *, in_background: bool = False
) -> Mapping[str, float]:
    """Take the step of a round, as `ReplayedState.follow`; who has signed a false list no longer closes rounds."""
    try:
        return state.follow(found, in_background=in_background)
    except FalseListError as error:
        reader.accuse(found.closed.key, str(error), found.closed.round)
        raise


def replayed(reader: RoundReader, state: ReplayedState, most_publishers: int | None = None) -> Iterator[ClosedRound]:
    """Follow the rounds that were closed since the state, one after the other; yield each once the state is there.

    Raises:
        FalseListError: a list is false; its publisher no longer counts, and the state must be restored.
        OtherStateError, HubAwayError, OSError: as `RoundReader.closed_round`.
    """
    while (closed := reader.closed_round(state.terms(), most_publishers)) is not None:
        follow(reader, state, closed)
        yield closed
