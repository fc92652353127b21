"""Auditing closed rounds from public files alone: whether each list names the state that its contributions lead to."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.features.hub_rounds.reading import OtherStateError, RoundReader, replayed
from pipelines.features.hub_rounds.statements import RoundList, fingerprint
from pipelines.features.hub_rounds.stepping import FalseListError, ReplayedState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AuditedRound:
    """What an audit has found of one publisher's list of a round."""

    round: int
    publisher: str
    """Fingerprint of its key."""

    members: tuple[str, ...]
    fault: str | None
    """None: all who repeat the round come to the state that the list names."""


def first_start(reader: RoundReader, starts: Iterable[int]) -> int | None:
    """Return the first of these epochs after which the bucket still has a round's contributions; None: none is."""
    for epoch in sorted(starts):
        for closed in (reader.list_of(key, epoch + 1) for key in reader.publishers()):
            if closed is not None and _is_kept(reader, closed):
                return epoch
    return None


def audited(reader: RoundReader, state: ReplayedState, folder: Path | None) -> Iterator[AuditedRound]:
    """Repeat the rounds since the checkpoint in a folder, None: since the start; yield what is found of each list.

    Who has signed a false list no longer closes rounds: those of the next publisher are audited from there on.

    Raises:
        OtherStateError: the rounds do not go on from the checkpoint.
        HubAwayError, OSError: the Hub does not answer, or refuses.
    """
    known = -1
    while True:
        liars = set(reader.liars)
        state.restore(folder)
        known = max(known, state.epoch)
        try:
            for closed in replayed(reader, state):
                yield from _accused(reader, liars, closed.closed.round)
                if closed.closed.round > known:
                    known = closed.closed.round
                    yield _found(closed.closed, None)
        except FalseListError as error:
            logger.debug("%s", error)
        except OtherStateError:
            if set(reader.liars) == liars:
                raise
        if set(reader.liars) == liars:
            return
        yield from _accused(reader, liars, known + 1)


def _accused(reader: RoundReader, before: set[str], number: int) -> Iterator[AuditedRound]:
    for key in set(reader.liars) - before:
        before.add(key)
        if (closed := reader.list_of(key, number)) is not None:
            yield _found(closed, "its contributions lead to another state, or were not drawn so")


def _is_kept(reader: RoundReader, closed: RoundList) -> bool:
    pointers = [member.pointer for member in closed.members[:1]]
    paths = [(reader.files.copy_path(closed.round, one.digest), one.size) for one in pointers]
    return all(reader.files.take(reader.files.run_bucket, *path) is not None for path in paths)


def _found(closed: RoundList, fault: str | None) -> AuditedRound:
    members = tuple(member.pointer.user for member in closed.members)
    return AuditedRound(round=closed.round, publisher=fingerprint(closed.key), members=members, fault=fault)
