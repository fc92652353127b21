"""What many peers' figures say about the run: pure functions, no network."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol


class Figures(Protocol):
    """The figures of one peer that the summary needs; see `peer_metrics.PeerMetrics`."""

    epoch: int
    loss: float
    num_samples: int
    samples_per_second: float
    share_averaged: float
    bytes_sent: int
    num_rounds: int
    round_seconds: float


@dataclass(frozen=True, kw_only=True)
class EpochSummary:
    """One point of the run's history."""

    epoch: int
    loss: float
    """Mean of the peers' losses, weighted by their speed, over the peers that report this epoch."""

    num_peers: int
    samples_per_second: float
    """Sum over all peers."""

    share_averaged: float
    """Smallest share of the vector that a peer got averaged in its last round."""

    bytes_sent: int
    """Sum over all peers since their start."""

    num_rounds: int
    """Largest number of rounds of a peer since its start."""

    round_seconds: float
    """Largest duration of a peer's last all-reduce."""

    time: float
    """Seconds since 1970."""


def summarise_epoch(peers: Iterable[Figures], time: float) -> EpochSummary | None:
    """Return the newest epoch's summary, or None while nobody has finished one."""
    alive = [peer for peer in peers if peer.epoch > 0]
    if not alive:
        return None
    epoch = max(peer.epoch for peer in alive)
    current = [peer for peer in alive if peer.epoch == epoch]
    weights = [max(peer.samples_per_second, 1e-9) for peer in current]
    return EpochSummary(
        epoch=epoch,
        loss=sum(w * peer.loss for w, peer in zip(weights, current, strict=True)) / sum(weights),
        num_peers=len(alive),
        samples_per_second=sum(peer.samples_per_second for peer in alive),
        share_averaged=min(peer.share_averaged for peer in alive),
        bytes_sent=sum(peer.bytes_sent for peer in alive),
        num_rounds=max(peer.num_rounds for peer in alive),
        round_seconds=max(peer.round_seconds for peer in alive),
        time=time,
    )


def append_summary(history: list[dict[str, Any]], summary: EpochSummary | None) -> list[dict[str, Any]]:
    """Return the history with the summary added; a newer view of the same epoch replaces the older one.

    After a fall-back to an older checkpoint the epochs that are lost leave the history too.
    """
    if summary is None:
        return history
    return [point for point in history if point["epoch"] < summary.epoch] + [asdict(summary)]


def should_publish(*, held_epoch: int, published_epoch: int, interval: int, last_epoch: int) -> bool:
    """Tell whether the auxiliary peer owes the Hub a checkpoint: every `interval` epochs, and at the end."""
    if held_epoch <= published_epoch:
        return False
    return held_epoch >= last_epoch or held_epoch - published_epoch >= interval
