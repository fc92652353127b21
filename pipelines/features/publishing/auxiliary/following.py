"""How an auxiliary peer keeps up with its run: the seam between what it publishes and the wire of the run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from pipelines.core.state.training_state import TrainingState
from pipelines.core.swarm.peer_records import AuxiliaryStatus, PeerMetrics, Reporter
from pipelines.features.publishing.auxiliary.publishing.hub_publisher import HubPublisher
from pipelines.features.publishing.metrics.credit.claims import RoundLog


class Following(Protocol):
    """Keeps the newest state of a run, and knows its peers."""

    model: torch.nn.Module
    state: TrainingState
    """Of the model: what this peer keeps, and checkpoints are made of."""

    rounds: RoundLog

    owner: bytes
    """Under which this peer's own status is announced; a proof of its key names it, so that no other can copy it."""

    addresses: tuple[str, ...]
    """Where newcomers find the run through this peer; empty if they need nobody."""

    def begin(self) -> None:
        """Go on from the state as it is now, of a checkpoint or untrained, and let newcomers have it."""

    def keeping_up(self) -> AbstractContextManager[None]:
        """Return a block in which threads of its own make this peer's steps; for its end it waits."""

    def paused(self) -> AbstractContextManager[None]:
        """Return a block before which the current round ends, and in which no other begins."""

    def figures(self) -> tuple[Mapping[bytes, PeerMetrics], Mapping[bytes, Reporter]]:
        """Return the figures of the live training peers, and who stands behind those that count, by public key."""

    def trainer_epochs(self) -> Sequence[int]:
        """Return the epoch of each live training peer."""

    def others(self) -> Mapping[bytes, AuxiliaryStatus]:
        """Return what the other live auxiliary peers announce, by `owner`; that each is its owner's is checked."""

    def announce(self, status: AuxiliaryStatus, lifetime_seconds: float) -> None:
        """Tell the others this peer's status, valid for `lifetime_seconds`."""

    def close(self) -> None:
        """Stop serving the state, and whatever else was started."""


Follow = Callable[[HubPublisher, Callable[[torch.nn.Module], float | None]], Following]
"""Returns how to follow a run: with the keys and the metrics of its publisher, and with what returns a model's held-out
loss, None if that cannot be computed."""
