"""Anchors: auxiliary peers that the organiser vouches for sign which epoch and training state the run has reached.

An anchor takes part in every round without a gradient, steps by itself, and signs only states that it has computed from
the last one that it signed; see `features.anchors`. Peers believe its signature, not a count of keys. Its roster names
the peers that it keeps averaging with: whoever knows nobody yet believes them about what came after, also while the
anchor is away. Decisions are pure; `AnchorWatch` only reads records.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hivemind.utils import get_dht_time

from pipelines.core.signing.publisher_keys import is_current, is_signed_by
from pipelines.core.signing.signed_statement import signed_bytes
from pipelines.core.state.votes import StateClaim, VoteResult, differs_from
from pipelines.core.swarm.peer_records import ANCHOR_SECONDS, AnchorRecord

AnchorKeys = Callable[[], Sequence[str]]
"""Returns the public keys of the run's anchors, in the order in which they decide."""

SECONDS_FRESH = 120.0
"""How long an anchor's statement stands for the present; it renews it much more often."""

SECONDS_BETWEEN_LOOKS = 1.0

EPOCHS_BEHIND = 1
"""How far an anchor may be behind and still decide: it steps with the others and signs a moment later."""

MOST_FORGED = 4096
"""Forged statements that are remembered, so that the same ones are not checked each second."""


def statement_of(record: AnchorRecord, swarm_id: str) -> bytes:
    """Return what an anchor signs."""
    fields = record.epoch, record.digest, float(record.time), list(record.roster), bool(record.returns)
    return signed_bytes("anchor", swarm_id, record.publisher_key, *fields)


@dataclass(frozen=True, kw_only=True)
class Anchorage:
    """What a peer knows from the anchors of its run."""

    has_anchors: bool = False
    """Whether the organiser has listed anchors; otherwise strangers are believed by who knows nobody."""

    present: AnchorRecord | None = None
    """The fresh statement of the first listed anchor that is alive."""

    roster: frozenset[str] = frozenset()
    """Names of the peers in the newest statement of any anchor, of the last `ANCHOR_SECONDS`; see `sender_name`."""

    newest_epoch: int = 0
    """The newest epoch in the fresh statements of all anchors: another one than `present` may be ahead of it."""


def anchorage(statements: Collection[AnchorRecord], keys: Sequence[str], now: float) -> Anchorage:
    """Return what follows from verified statements; `keys` are the listed anchors' that are not revoked, in order."""
    dated = [item for item in statements if item.publisher_key in keys and is_current(item.time, now, ANCHOR_SECONDS)]
    fresh = [item for item in dated if is_current(item.time, now, SECONDS_FRESH)]
    by_rank = sorted(fresh, key=lambda item: (keys.index(item.publisher_key), -float(item.time)))
    newest = max(dated, key=lambda item: (item.time, item.epoch), default=None)
    source = by_rank[0] if by_rank else newest
    return Anchorage(
        has_anchors=bool(keys),
        present=by_rank[0] if by_rank else None,
        roster=frozenset(source.roster) if source is not None else frozenset(),
        newest_epoch=max((int(item.epoch) for item in fresh), default=0),
    )


def anchored(
    verdict: VoteResult | None,
    anchor: AnchorRecord | None,
    claims: Mapping[bytes, StateClaim],
    refused: Collection[str] = (),
    *,
    is_overdue: bool = False,
) -> VoteResult | None:
    """Return the state to take: the anchor's, or the votes' if the anchor does not keep up with those who vote.

    None: nobody serves the state that counts at the moment. `is_overdue`: the anchor has had the time to sign a state
    one epoch ahead. Then it counts if more than half name it: an anchor that dies in a run's last epoch never signs
    that, and hid it for as long as its old statement is fresh. Nobody gains by it who could not claim two epochs.
    """
    if anchor is None or (verdict is not None and not _speaks_of(anchor, verdict.epoch)):
        return verdict
    if is_overdue and verdict is not None and verdict.is_clear and verdict.epoch > anchor.epoch and not anchor.returns:
        return verdict
    same = [claim for claim in claims.values() if claim.epoch == anchor.epoch]
    donors = {claim.peer_id for claim in same if claim.shares and claim.digest == anchor.digest}
    if not donors or anchor.digest in refused:
        return None
    return VoteResult(
        epoch=anchor.epoch,
        digest=anchor.digest,
        num_votes=1,
        num_voters=1,
        num_late=0,
        donors=tuple(sorted(donors)),
        outvoted=tuple(sorted({claim.peer_id for claim in same if claim.digest != anchor.digest})),
        is_anchored=True,
    )


def is_contradicted(epoch: int, digest: str, anchor: AnchorRecord | None, verdict: VoteResult | None) -> bool | None:
    """Return whether a peer's own state of this epoch is not the run's; None while that is not known.

    The anchor decides if it keeps up, otherwise the votes.
    """
    if anchor is None or not _speaks_of(anchor, epoch):
        return differs_from(verdict, epoch, digest)
    if anchor.epoch == epoch:
        return anchor.digest != digest
    # Who is one epoch ahead may have stepped together with it a moment ago.
    return True if anchor.returns and anchor.epoch + EPOCHS_BEHIND < epoch else None


def _speaks_of(anchor: AnchorRecord, epoch: int) -> bool:
    return anchor.returns or epoch <= anchor.epoch + EPOCHS_BEHIND


class StoredStatements(Protocol):
    """Where anchors' statements are stored; see `SwarmRecords`."""

    def anchors(self) -> list[AnchorRecord]:
        """Return what anybody has stored as an anchor's statement."""


class AnchorWatch:
    """Reads the anchors' statements from the swarm, at most once a second; the newest of each key is remembered."""

    def __init__(
        self,
        records: StoredStatements,
        swarm_id: str,
        keys: AnchorKeys,
        own_key: str | None = None,
        clock: Callable[[], float] = lambda: get_dht_time(),  # which is replaced; see `swarm_time`
    ) -> None:
        """`keys` returns the public keys of the run's anchors. An anchor follows those before its `own_key`."""
        self._records, self._swarm_id, self._keys, self._own_key = records, swarm_id, keys, own_key
        self._held: dict[str, AnchorRecord] = {}
        self._forged: set[tuple[bytes, str]] = set()
        self._clock, self._next_look, self._lock = clock, float("-inf"), threading.Lock()

    @property
    def is_anchor(self) -> bool:
        """Whether this peer is one of the run's anchors."""
        return self._own_key is not None and self._own_key in self._keys()

    def look(self) -> Anchorage:
        """Return what the anchors have said so far."""
        with self._lock:
            keys, now = tuple(self._keys()), self._clock()
            if keys and now >= self._next_look:
                self._next_look = now + SECONDS_BETWEEN_LOOKS
                for record in self._records.anchors():
                    if is_current(record.time, now, ANCHOR_SECONDS):  # one of a wrong clock would hide the next ones
                        self._note(record, keys)
            self._held = {key: record for key, record in self._held.items() if key in keys}
            seen = anchorage(self._held.values(), keys, now)
            if seen.present is not None and self._own_key in keys[: keys.index(seen.present.publisher_key) + 1]:
                seen = replace(seen, present=None)
            return seen

    def _note(self, record: AnchorRecord, keys: Sequence[str]) -> None:
        held = self._held.get(record.publisher_key)
        is_news = record.publisher_key in keys and (held is None or float(held.time) < float(record.time))
        statement = statement_of(record, self._swarm_id)
        if not is_news or (statement, record.signature) in self._forged:
            return
        if is_signed_by(record.publisher_key, statement, record.signature):
            self._held[record.publisher_key] = record
        elif len(self._forged) < MOST_FORGED:
            self._forged.add((statement, record.signature))
