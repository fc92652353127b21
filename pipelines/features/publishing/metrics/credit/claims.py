"""What peers claim to have contributed, and what bears it out. Pure, no network.

Keys are free, so all keys of a user are one user, and nobody's word counts: the auxiliary peer that keeps the books
listens to the rounds, and credits those whose values it has found in the average.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pipelines.features.publishing.metrics.epoch_summary import NUM_EPOCHS_AHEAD

EPOCH_SLACK = 2.0
"""An epoch holds more than `samples_per_epoch` samples: peers continue until they learn that it is full."""

SPEED_SLACK = 3.0
LATE_SECONDS = 10.0
"""Reports are read some seconds after they are made."""

LATE_EPOCHS = 4
"""Reports of an epoch may arrive up to this many epochs later."""

EPOCHS_TO_ESTABLISH = 3
"""Epochs in which a user must have taken part to be credited as much as an ordinary one."""

ROUNDS_REMEMBERED = 16


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One peer's report about itself."""

    username: str
    """Under which it is shown; in an open run a claim, too."""

    epoch: int
    num_samples: int
    """Since the peer's start."""

    samples_per_second: float
    user: str
    """Who is credited: the admitted user, in an open run the peer."""

    sender: str
    """The name of this peer among a round's senders, see `sender_name`."""

    device: str = ""
    """What the peer says that it computes on; empty: it has not said."""


@dataclass(frozen=True, kw_only=True)
class Counter:
    """The last report of a peer that was counted."""

    num_samples: int
    epoch: int
    time: float
    pace: float = 0.0
    """Plausible samples per epoch, by the last report."""

    pending: int = 0
    """Plausible samples not credited yet, and the time for them."""

    pending_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CreditStanding:
    """What is known about a user."""

    num_epochs: int
    """In which it took part."""

    epoch: int
    """The last of them."""

    allowance: float
    """Epochs for which it may still be credited."""

    time: float

    @property
    def is_established(self) -> bool:
        """Whether it has taken part for long enough to be an ordinary user."""
        return self.num_epochs >= EPOCHS_TO_ESTABLISH

    @property
    def growth(self) -> float:
        """How many times the ordinary pace it may be credited."""
        return 2.0 ** min(self.num_epochs - EPOCHS_TO_ESTABLISH, 64)


def is_possible(claim: Claim, swarm_epoch: int) -> bool:
    """Return whether the swarm can have reached the claim's epoch, and its speed is a number."""
    return claim.epoch <= swarm_epoch + NUM_EPOCHS_AHEAD and math.isfinite(claim.samples_per_second)


def plausible_samples(claim: Claim, last: Counter | None, *, now: float, epoch_before: int, batch_size: int) -> int:
    """Return how many new samples of a claim are plausible.

    `epoch_before` is the swarm's epoch at the last poll: where a newly seen peer may have started.
    A count that has decreased belongs to a peer that restarted.
    """
    restarted = last is None or claim.num_samples < last.num_samples
    new = claim.num_samples if restarted or last is None else claim.num_samples - last.num_samples
    num_epochs = max(LATE_EPOCHS, claim.epoch - epoch_before) if last is None else max(1, claim.epoch - last.epoch)
    bounds = [float(new), EPOCH_SLACK * batch_size * num_epochs]
    if last is not None:
        bounds.append(SPEED_SLACK * claim.samples_per_second * (max(0.0, now - last.time) + LATE_SECONDS))
    return max(0, int(min(bounds)))


class RoundLog:
    """Whose values were in the average of the last rounds that this peer has listened to.

    Written by one thread, read by another.
    """

    def __init__(self) -> None:
        self._senders: dict[int, frozenset[str]] = {}

    def note(self, epoch: int, senders: Iterable[str]) -> None:
        """Record the names of a round's senders, see `sender_name`; `epoch` is that of the state after its step."""
        held = self._senders | {epoch: self._senders.get(epoch, frozenset()) | frozenset(senders)}
        self._senders = {epoch: held[epoch] for epoch in sorted(held)[-ROUNDS_REMEMBERED:]}

    def senders(self, epoch: int) -> frozenset[str]:
        """Return the names of those whose values led to the state of an epoch; empty if this peer was not there."""
        return self._senders.get(epoch, frozenset())

    def names(self, sender: str, epoch: int) -> bool:
        """Return whether a peer was in the round of an epoch, or of one beside it, which some report with delays."""
        held = self._senders
        return any(sender in held.get(near, ()) for near in (epoch - 1, epoch, epoch + 1))


def witnessed(claims: Collection[Claim], rounds: RoundLog) -> set[str]:
    """Return the users of whom a peer was in the round of the epoch that it claims; who is alone needs no witness."""
    users = {claim.user for claim in claims}
    return users if len(users) == 1 else {claim.user for claim in claims if rounds.names(claim.sender, claim.epoch)}


def fit_into(claims: Mapping[str, int], capacity: int) -> dict[str, int]:
    """Cut the largest claims until all fit into the capacity; claims below the cut are unchanged."""
    left, fitted = max(0, capacity), {}
    for index, key in enumerate(sorted(claims, key=lambda key: (claims[key], key))):
        fitted[key] = min(claims[key], left // (len(claims) - index))
        left -= fitted[key]
    return fitted
