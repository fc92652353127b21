"""What peers claim to have contributed, and who bears it out. Pure, no network.

Keys are free, so all keys of a user are one user, and only what established others have averaged is borne out.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipelines.training.metrics.epoch_summary import NUM_EPOCHS_AHEAD

EPOCH_SLACK = 2.0
"""An epoch holds more than `target_batch_size` samples: peers continue until they learn that it is full."""

SPEED_SLACK = 3.0
LATE_SECONDS = 10.0
"""Reports are read some seconds after they are made."""

LATE_EPOCHS = 4
"""Reports of an epoch may arrive up to this many epochs later."""

EPOCHS_TO_ESTABLISH = 3
"""Epochs in which a user must have been witnessed to be a witness, and be credited as much as an ordinary one."""


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
    """The name by which others' reports know this peer."""

    senders: frozenset[str]
    """Names of peers whose values it has in its last round's average."""

    names_all: bool = True
    """Whether `senders` are all of them; a report names only so many."""


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
class Standing:
    """What others have said about a user."""

    num_epochs: int
    """In which it was witnessed."""

    epoch: int
    """The last of them."""

    allowance: float
    """Epochs for which it may still be credited."""

    time: float

    @property
    def is_established(self) -> bool:
        """Whether it can be a witness."""
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


def witnessed(claims: Collection[Claim], established: Collection[str]) -> set[str]:
    """Return the users that established others name as senders of their epoch's round.

    One other is enough for an established user, and while nobody is established; else a third of those whose whole
    list is known. A user with nobody who could name it needs no witness.
    """
    reporters = [claim for claim in claims if not established or claim.user in established]
    users, named_by, silent = {claim.user for claim in reporters}, defaultdict(set), defaultdict(set)
    for claim in reporters:
        for sender in claim.senders:
            named_by[claim.epoch, sender].add(claim.user)
        if claim.senders and claim.names_all:
            silent[claim.epoch].add(claim.user)
    found = set()
    for claim in claims:
        naming = named_by[claim.epoch, claim.sender] - {claim.user}
        num_needed = 1.0
        if established and claim.user not in established:
            num_needed = max(1.0, len(silent[claim.epoch] | naming) / 3)
        if len(naming) >= num_needed or not users - {claim.user}:
            found.add(claim.user)
    return found


def fit_into(claims: Mapping[str, int], capacity: int) -> dict[str, int]:
    """Cut the largest claims until all fit into the capacity; claims below the cut are unchanged."""
    left, fitted = max(0, capacity), {}
    for index, key in enumerate(sorted(claims, key=lambda key: (claims[key], key))):
        fitted[key] = min(claims[key], left // (len(claims) - index))
        left -= fitted[key]
    return fitted
