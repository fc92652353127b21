"""Summarises the peers' figures: pure functions, no network."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict

from pipelines.core.run.bounded_speeds import bounded_speeds

NUM_EPOCHS_AHEAD = 2
"""Honest peers are within an epoch of each other; records of the next round may be read before all have changed."""


class NamesSuspect(Protocol):
    """One peer's report about another; see `records.SuspectRecord`."""

    peer_id: str


class Figures(Protocol):
    """The figures of one peer that the summary needs; see `records.PeerMetrics`."""

    epoch: int
    loss: float
    num_samples: int
    samples_per_second: float
    share_averaged: float
    bytes_sent: int
    num_rounds: int
    round_seconds: float
    num_refused_gradients: int
    suspects: Sequence[NamesSuspect]


class EpochSummary(TypedDict):
    """One point of the run's history; those of old runs lack what is not required."""

    epoch: int
    loss: float
    """Mean of the peers' losses, weighted by their speed, over the peers that report this epoch."""

    num_peers: int
    samples_per_second: float
    """Sum over all peers."""

    share_averaged: float
    """Smallest share of the vector that a peer got averaged in its last round."""

    bytes_sent: NotRequired[int]
    """Sum over all peers since their start."""

    num_rounds: NotRequired[int]
    """Largest number of rounds of a peer since its start."""

    round_seconds: float
    """Largest duration of a peer's last all-reduce."""

    time: float
    """Seconds since 1970."""

    epoch_seconds: float
    """Time since the last point of the history, per epoch; 0 while unknown."""

    num_refused_gradients: NotRequired[int]
    """Local gradients dropped because they were not finite; sum over all peers since their start."""

    suspects: NotRequired[Mapping[str, int]]
    """Peers whose contributions were clipped or rejected, with the number of peers reporting it."""


def credible_epoch(claimed: Sequence[int], held_epoch: int = 0) -> int | None:
    """Return the newest epoch that the claims support, or None without one.

    At least half of the peers, or the state that the reader itself holds, must have come within `NUM_EPOCHS_AHEAD`.
    """
    if not claimed:
        return None
    base = max(statistics.median_low(claimed), held_epoch)
    return max((epoch for epoch in claimed if epoch <= base + NUM_EPOCHS_AHEAD), default=None)


def summarise_epoch(peers: Iterable[Figures], time: float, held_epoch: int = 0) -> EpochSummary | None:
    """Return the newest epoch's summary, or None while nobody has finished one.

    `held_epoch` is that of the reader's own state. A minority of peers claiming absurd epochs, speeds or losses
    cannot distort the summary much.
    """
    alive = [peer for peer in peers if peer.epoch > 0]
    epoch = credible_epoch([peer.epoch for peer in alive], held_epoch)
    if epoch is None:
        return None
    alive = [peer for peer in alive if peer.epoch <= epoch]
    speeds = bounded_speeds([peer.samples_per_second for peer in alive])
    losses = [peer.loss for peer in alive if peer.epoch == epoch]
    weights = [max(speed, 1e-9) for speed, peer in zip(speeds, alive, strict=True) if peer.epoch == epoch]
    accused = Counter(name for peer in alive for name in {suspect.peer_id for suspect in peer.suspects})
    return EpochSummary(
        epoch=epoch,
        loss=sum(w * loss for w, loss in zip(weights, _without_outliers(losses), strict=True)) / sum(weights),
        num_peers=len(alive),
        samples_per_second=sum(speeds),
        share_averaged=min(peer.share_averaged for peer in alive),
        bytes_sent=sum(peer.bytes_sent for peer in alive),
        num_rounds=max(peer.num_rounds for peer in alive),
        round_seconds=max(peer.round_seconds for peer in alive),
        time=time,
        epoch_seconds=0.0,
        num_refused_gradients=sum(peer.num_refused_gradients for peer in alive),
        suspects=dict(sorted(accused.items())),
    )


def _without_outliers(losses: Sequence[float]) -> list[float]:
    """Replace losses far above the median by it; local losses of honest peers differ by a few per cent."""
    median = statistics.median_low(losses)
    return [loss if loss <= 4 * median + 1 else median for loss in losses]


def should_publish(*, held_epoch: int, published_epoch: int, interval: int, last_epoch: int) -> bool:
    """Tell whether the auxiliary peer owes the Hub a checkpoint: every `interval` epochs, and at the end."""
    if held_epoch <= published_epoch:
        return False
    return held_epoch >= last_epoch or held_epoch - published_epoch >= interval
