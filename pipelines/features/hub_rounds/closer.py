"""Closing rounds: an auxiliary peer lists which contributions count, and signs the state that follows from them.

It trusts nobody and nobody trusts it: whoever takes the list computes the same mean, and sees a false one. What it can
do is leave people out, and they see that.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hub_tools.printing.printable import one_line
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import (
    StatementRefusedError,
    read_signed,
    signed_text,
)
from pipelines.features.hub_rounds.closing import MOST_REASON, NOT_DRAWN, drawn_order, next_deadline, refusal
from pipelines.features.hub_rounds.exchange import (
    SECONDS_BEFORE_BYTES,
    SECONDS_OF_GRACE,
    seconds_for_bytes,
    takeover_seconds,
)
from pipelines.features.hub_rounds.files import Found, HubAwayError
from pipelines.features.hub_rounds.reading import RoundReader, replayed
from pipelines.features.hub_rounds.statements import (
    MOST_CANDIDATES,
    Candidate,
    Pointer,
    RoundList,
    SignedPointer,
    fingerprint,
)
from pipelines.features.hub_rounds.stepping import ClosedRound, ReplayedState

logger = logging.getLogger(__name__)

POINTERS_AT_ONCE, CONTENTS_AT_ONCE = 16, 8
SECONDS_BETWEEN_LISTINGS = 60.0
"""Between two looks at who has a bucket, or a window if that is less."""

SECONDS_BETWEEN_TRIES = 1.0
SECONDS_LATE = 2.0
"""How long after the deadline a pointer may have been put: the Hub's clock has whole seconds."""

UNUSABLE = "its bytes are not what its pointer says, or no progress of this model"
RESERVE = 8
"""Contributions that are fetched besides those that were drawn, for those that cannot be used."""


@dataclass
class Intake:
    """What was offered to a round."""

    offered: dict[str, SignedPointer] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    contents: dict[str, Found] = field(default_factory=dict)


class RoundCloser:
    """Follows the rounds that others close, and closes those that are its turn. Used by one thread."""

    def __init__(self, reader: RoundReader, state: ReplayedState, key: PublisherKey) -> None:
        self.run: TrainingRun = state.run
        self.state, self._reader, self._files, self._key = state, reader, reader.files, key
        self._deadline: float | None = None
        self._volunteers: list[str] = []
        self._next_listing = 0.0
        self._unsent: RoundList | None = None
        self.on_closed: Callable[[ClosedRound], None] = lambda _closed: None
        """Called with every round, whoever has closed it, once the state is there."""

    @property
    def is_open(self) -> bool:
        """Whether the run's rounds have begun, as far as this closer knows."""
        return self._deadline is not None

    def place(self) -> int | None:
        """Return this closer's place among the publishers of the run, from 0; None: it is not one of them."""
        order = self._reader.publishers()
        return order.index(self._key.public) if self._key.public in order else None

    def restore(self, folder: Path | None) -> None:
        """Go to the checkpoint in a folder, None: to the start; what led away from it is no longer published."""
        self._unsent = None
        self.state.restore(folder)

    def open(self) -> None:
        """Say from which state the rounds go on, unless a publisher has said so. Raises what `put` raises."""
        newest = self._reader.present(self.state.digest)
        if newest is not None:
            self._deadline = newest.deadline
            return
        now = self._files.clock()
        opening = self._list(previous="", members=(), left_out=(), now=now, deadline=now + self.run.window_seconds)
        self._publish(opening)

    def keep_up(self) -> float:
        """Do what is to be done now; return the seconds until there is more.

        Raises:
            OtherStateError: a publisher that comes before this one has gone on from another state.
            FalseListError: a list is false; as with the other, the state must be restored.
            HubAwayError, OSError: the Hub does not answer, or refuses; the same is done with the next call.
        """
        if self._unsent is not None:
            self._publish(self._unsent)
        place = self.place()
        if place is None or self._deadline is None:
            self._follow(None)
            return SECONDS_BETWEEN_TRIES
        if place:
            self._follow(place)
        moment = self._deadline + SECONDS_OF_GRACE + place * takeover_seconds(self.run.window_seconds)
        if (rest := moment - self._files.clock()) > 0:
            return min(rest, SECONDS_BETWEEN_TRIES if not place else 5.0)
        # Whoever comes back from a checkpoint is behind: of others' rounds, and of its own.
        if not self._follow(None):
            self._close()
        return 0.0

    def _follow(self, most_publishers: int | None) -> bool:
        """Take the steps of rounds that were closed; return whether there were any."""
        before = self.state.epoch
        for found in replayed(self._reader, self.state, most_publishers):
            self._deadline = found.closed.deadline
            self.on_closed(found)
        if self._deadline is None and (newest := self._reader.present(self.state.digest)) is not None:
            self._deadline = newest.deadline
        return self.state.epoch != before

    def _close(self) -> None:
        """Close the round at its deadline; without a contribution it goes on for another window."""
        assert self._deadline is not None
        deadline = self._deadline
        intake = self._pointers(deadline)
        chosen = self._contents(intake, deadline)
        if not chosen:
            self._deadline = next_deadline(deadline, self.run.window_seconds, self._files.clock())
            return
        members = tuple(intake.offered[user] for user in chosen)
        contents = tuple(intake.contents[user].content for user in chosen)
        self._copy(chosen, intake)
        previous = self.state.digest
        self.state.step([member.pointer for member in members], contents)
        left_out = {user: NOT_DRAWN for user in intake.offered if user not in chosen} | intake.left_out
        now = self._files.clock()
        closed = self._list(
            previous=previous,
            members=members,
            left_out=tuple(Candidate(user=user, reason=left_out[user]) for user in sorted(left_out)[:MOST_CANDIDATES]),
            now=now,
            deadline=max(deadline + self.run.window_seconds, now + self.run.window_seconds / 2),
        )
        self.on_closed(ClosedRound(closed=closed, contents=contents))
        self._publish(closed)

    def _pointers(self, deadline: float) -> Intake:
        """Read what the volunteers offer; of two that offer the same bytes only one counts."""
        terms, intake = self.state.terms(), Intake()
        until = deadline + seconds_for_bytes(self.run.window_seconds)

        def take(user: str) -> Found | None:
            while True:
                try:
                    return self._files.take(self._files.bucket_of(user), self._files.pointer_path, Pointer.MOST_BYTES)
                except HubAwayError:  # nobody is to blame, and of many pointers one may always fail
                    if self._files.clock() >= until:
                        raise
                    time.sleep(SECONDS_BETWEEN_TRIES)

        def read(user: str) -> SignedPointer | str | None:
            try:
                if (found := take(user)) is None:
                    return None
                pointer, signature = read_signed(Pointer, found.content)
            except (StatementRefusedError, OSError, ValueError) as error:
                return str(error)
            if found.modified is not None and found.modified > deadline + SECONDS_LATE:
                return f"{found.modified - deadline:.0f} s late" if pointer.round == terms.round else None
            if pointer.round < terms.round and pointer.swarm_id == terms.swarm_id:
                return None  # it offers nothing now
            reason = refusal(pointer, user, terms)
            return reason or SignedPointer(pointer=pointer, signature=signature)

        with ThreadPoolExecutor(POINTERS_AT_ONCE, "pointers") as executor:
            answers = dict(zip(users := self._users(), executor.map(read, users), strict=True))
        seen: set[str] = set()
        for user in drawn_order(terms.state, [user for user, answer in answers.items() if answer is not None]):
            answer = answers[user]
            if isinstance(answer, str):
                intake.left_out[user] = one_line(answer, MOST_REASON)
            elif answer is not None and answer.pointer.digest in seen:
                intake.left_out[user] = "the same bytes as another's"
            elif answer is not None:
                seen.add(answer.pointer.digest)
                intake.offered[user] = answer
        return intake

    def _contents(self, intake: Intake, deadline: float) -> list[str]:
        """Fetch the contributions in the order in which they are drawn; return whose count, in that order."""
        until = deadline + seconds_for_bytes(self.run.window_seconds)
        most, refused = self.run.contributions_per_round, intake.left_out
        self._sleep_until(deadline + SECONDS_BEFORE_BYTES)

        def fetch(user: str) -> Found | str | None:
            pointer = intake.offered[user].pointer
            path = self._files.offer_path(pointer.round, pointer.digest)
            try:
                found = self._files.take(self._files.bucket_of(user), path, pointer.size)
            except ValueError:  # more of them
                return UNUSABLE
            except OSError as error:
                return None if self._files.clock() < until else one_line(error, MOST_REASON)
            if found is not None and self.state.usable(pointer, found.content) is None:
                return UNUSABLE
            return found

        with ThreadPoolExecutor(CONTENTS_AT_ONCE, "contents") as executor:
            while True:
                # In the order that was drawn: nobody further back counts while one before him may still come.
                wanted = [user for user in intake.offered if user not in refused][: most + RESERVE]
                missing = [user for user in wanted if user not in intake.contents]
                if not set(missing) & set(wanted[:most]):
                    break
                for user, answer in zip(missing, executor.map(fetch, missing), strict=True):
                    if isinstance(answer, Found):
                        intake.contents[user] = answer
                    elif isinstance(answer, str):
                        refused[user] = answer
                if silent := [user for user in missing if user not in intake.contents and user not in refused]:
                    if self._files.clock() >= until:
                        refused |= dict.fromkeys(silent, "its bytes were not there in time")
                    else:
                        time.sleep(SECONDS_BETWEEN_TRIES)
        for user in refused:
            intake.offered.pop(user, None)
        return [user for user in intake.offered if user in intake.contents][:most]

    def _copy(self, chosen: Sequence[str], intake: Intake) -> None:
        """Put the contributions that count into the run's bucket: nobody can take them away then."""
        pointers = {user: intake.offered[user].pointer for user in chosen}
        paths = {user: self._files.copy_path(pointer.round, pointer.digest) for user, pointer in pointers.items()}
        self._files.put(self._files.run_bucket, {paths[user]: intake.contents[user].content for user in chosen})

    def _list(
        self,
        *,
        previous: str,
        members: tuple[SignedPointer, ...],
        left_out: tuple[Candidate, ...],
        now: float,
        deadline: float,
    ) -> RoundList:
        return RoundList(
            swarm_id=self.run.swarm_id,
            round=self.state.epoch,
            previous=previous,
            state=self.state.digest,
            members=members,
            left_out=left_out,
            closed_at=now,
            deadline=deadline,
            key=self._key.public,
        )

    def _publish(self, closed: RoundList) -> None:
        """Put a list; what cannot be put now is put with the next call of `keep_up`."""
        text, publisher = signed_text(closed, self._key), fingerprint(self._key.public)
        self._deadline = closed.deadline
        self._unsent = closed
        paths = {self._files.list_path(publisher, number): text for number in (closed.round, None)}
        self._files.put(self._files.run_bucket, paths, delete=self._outdated(closed.round - self.run.kept_rounds))
        self._unsent = None

    def _outdated(self, number: int) -> list[str]:
        """Return the copies of a round that nobody needs any more."""
        old = self._reader.list_of(self._key.public, number) if number > 0 else None
        return [self._files.copy_path(number, member.pointer.digest) for member in old.members] if old else []

    def _users(self) -> list[str]:
        if time.monotonic() >= self._next_listing:
            self._volunteers = self._files.volunteers()
            self._next_listing = time.monotonic() + min(SECONDS_BETWEEN_LISTINGS, self.run.window_seconds / 2)
        return self._volunteers

    def _sleep_until(self, moment: float) -> None:
        time.sleep(max(0.0, min(moment - self._files.clock(), self.run.window_seconds)))
