"""Who is training and who has left: every peer's state from one snapshot to the next. Pure, no network."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pipelines.features.publishing.metrics.epoch_summary import (
    NUM_EPOCHS_AHEAD,
    EpochSummary,
    credible_epoch,
    summarise_epoch,
)
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import SeenPeer, SwarmSnapshot
from pipelines.tools.pages.table_order import Columns, in_order

LATE_SECONDS = 5.0
"""Time that a renewed record may take to arrive."""

KEEP_GONE_SECONDS = 600.0
MAX_GONE = 1000
PAGE_SIZE = 100


class PeerState(StrEnum):
    """What a peer is doing, in the order of the table."""

    TRAINING = "training"
    CATCHING_UP = "catching up"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class TrackedPeer:
    """A peer with what all snapshots together say about it."""

    peer: SeenPeer
    first_seen: float
    last_seen: float
    """When its progress record was last renewed, by the observing machine's clock."""

    state: PeerState


COLUMNS: Columns = {
    "user": lambda one: one.peer.username.casefold() or None,
    "state": lambda one: list(PeerState).index(one.state),
    "speed": lambda one: None if one.state is PeerState.GONE else one.peer.samples_per_second,
    "epoch": lambda one: one.peer.epoch,
    "samples": lambda one: one.peer.figures.num_samples if one.peer.figures else None,
    "seen": lambda one: one.last_seen,
    "device": lambda one: one.peer.device or None,
    "mode": lambda one: one.peer.client_mode,
    "version": lambda one: one.peer.package_version or None,
}
"""What the table can be sorted by."""


@dataclass(frozen=True, kw_only=True)
class PeerPage:
    """A part of the table."""

    rows: tuple[TrackedPeer, ...]
    page: int
    """Counted from 1."""

    num_pages: int
    first_row: int
    num_found: int
    num_peers: int
    order: str = ""


def track(
    known: Mapping[str, TrackedPeer], snapshot: SwarmSnapshot, expiration_seconds: float
) -> dict[str, TrackedPeer]:
    """Return the peers after a snapshot, by key: those known before and those seen now.

    A peer renews its record before half of `expiration_seconds` has passed: without a renewal it has left, even while
    its last record is still valid.
    """
    now = snapshot.time
    newest = _credible(snapshot.peers)
    tracked = {}
    for peer in snapshot.peers:
        before = known.get(peer.key)
        if before is None:
            renewed = min(now, max(now - expiration_seconds, peer.valid_until - expiration_seconds))
        else:
            renewed = before.last_seen if peer.valid_until == before.peer.valid_until else now
        is_gone = now - renewed > expiration_seconds / 2 + LATE_SECONDS
        state = PeerState.GONE if is_gone else _state(peer, newest)
        tracked[peer.key] = TrackedPeer(
            peer=_with_memory(peer, before),
            first_seen=before.first_seen if before else now,
            last_seen=renewed,
            state=state,
        )
    gone = [
        (key, replace(before, state=PeerState.GONE))
        for key, before in known.items()
        if key not in tracked and now - before.last_seen < KEEP_GONE_SECONDS
    ]
    gone.sort(key=lambda item: -item[1].last_seen)
    return tracked | dict(gone[:MAX_GONE])


def alive(tracked: Mapping[str, TrackedPeer]) -> list[TrackedPeer]:
    """Return the peers that have not left."""
    return [peer for peer in tracked.values() if peer.state is not PeerState.GONE]


def swarm_epoch(peers: Iterable[TrackedPeer]) -> int:
    """Return the newest epoch that at least half of the peers report; 0 if there are none."""
    return _credible(one.peer for one in peers)


def summarise(tracked: Mapping[str, TrackedPeer], now: float, held_epoch: int) -> EpochSummary | None:
    """Return the newest epoch reported by the peers that are alive; None while none reports one."""
    figures = [one.peer.figures for one in alive(tracked) if one.peer.figures is not None]
    return summarise_epoch(figures, now, held_epoch)


def count_states(tracked: Mapping[str, TrackedPeer]) -> Counter[PeerState]:
    """Return how many peers are in each state."""
    return Counter(one.state for one in tracked.values())


def page_of(
    tracked: Mapping[str, TrackedPeer], search: str = "", page: int = 1, size: int = PAGE_SIZE, order: str = ""
) -> PeerPage:
    """Return one page of the peers that match a search, in an order of `COLUMNS`; training and fast ones come first.

    A page number out of range becomes the nearest valid one.
    """
    words = str(search).casefold().split()
    found = in_order(sorted((one for one in tracked.values() if _fits(one, words)), key=_order), order, COLUMNS)
    num_pages = max(1, -(-len(found) // size))
    page = min(max(1, page), num_pages)
    rows = tuple(found[(page - 1) * size : page * size])
    return PeerPage(
        rows=rows,
        page=page,
        num_pages=num_pages,
        first_row=(page - 1) * size + 1,
        num_found=len(found),
        num_peers=len(tracked),
        order=order,
    )


def names_by_peer_id(tracked: Mapping[str, TrackedPeer]) -> dict[str, str]:
    """Return the users of libp2p ids."""
    return {one.peer.peer_id: one.peer.username for one in tracked.values() if one.peer.username}


def _credible(peers: Iterable[SeenPeer]) -> int:
    return credible_epoch([peer.epoch for peer in peers if peer.epoch is not None]) or 0


def _state(peer: SeenPeer, newest: int) -> PeerState:
    is_behind = peer.epoch is not None and peer.epoch + NUM_EPOCHS_AHEAD < newest
    return PeerState.CATCHING_UP if is_behind else PeerState.TRAINING


def _with_memory(peer: SeenPeer, before: TrackedPeer | None) -> SeenPeer:
    """Fill in earlier figures of the peer: in the DHT they may expire before an epoch ends."""
    if before is None:
        return peer
    old = before.peer
    return replace(
        peer,
        username=peer.username or old.username,
        device=peer.device or old.device,
        package_version=peer.package_version or old.package_version,
        figures=peer.figures or old.figures,
    )


def _fits(one: TrackedPeer, words: Sequence[str]) -> bool:
    peer = one.peer
    mode = "client" if peer.client_mode else ""
    text = " ".join((peer.username, peer.device, peer.package_version, peer.peer_id, one.state, mode)).casefold()
    return all(word in text for word in words)


def _order(one: TrackedPeer) -> tuple[int, float, str, str]:
    return list(PeerState).index(one.state), -(one.peer.samples_per_second or 0.0), one.peer.username, one.peer.key
