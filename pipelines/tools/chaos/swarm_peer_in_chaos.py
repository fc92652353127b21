"""A chaotic peer of a swarm: see `chaotic_peer`."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pipelines.core.peer.entering import Membership, PeerContext
from pipelines.core.peer.reports import StepReport
from pipelines.core.peer.volunteer import EventHandler
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.task import Batch
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.joining.join_run import join_run
from pipelines.tasks.choice import open_task
from pipelines.tools.chaos.chaotic_peer import ChaoticPeerSettings
from pipelines.tools.chaos.faults.hostile_peers import Attack, HostileAverager


class SwarmPeerInChaos:
    """See `ObservedPeer`."""

    def __init__(self, membership: Membership) -> None:
        self._membership, self._peer = membership, membership.peer
        self.task, self.model, self.stop = self._peer.task, self._peer.model, membership.stop
        self._num_rounds = self._num_in_round = 0

    @property
    def epoch(self) -> int:
        """See `ObservedPeer`."""
        return self._peer.optimizer.local_epoch

    def train(self, through: Callable[[Iterator[Batch]], Iterator[Batch]]) -> Iterator[StepReport]:
        """See `ObservedPeer`."""
        return self._membership.train(through)

    def attack(self, name: str) -> None:
        """See `ObservedPeer`."""
        averager: Any = self._peer.optimizer.averager
        averager.attack = Attack(name)

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """See `ObservedPeer`."""
        return dict(self.model.named_parameters())

    def sent_and_kept(self, _report: StepReport, num_samples: int) -> tuple[int, int]:
        """See `ObservedPeer`; the samples of a round that failed are lost."""
        progress = self._peer.optimizer.progress()
        num_kept = progress.num_gathered  # of a missed round, for the next one
        num_sent = num_samples - num_kept
        if self._peer.run.delay_gradient_averaging:  # the finished round had the samples of the previous epoch
            num_sent, self._num_in_round = self._num_in_round, num_sent if progress.has_begun_round else 0
        return num_sent, num_kept

    def round_figures(self) -> Mapping[str, object]:
        """See `ObservedPeer`."""
        averaging = self._peer.optimizer.progress().gradient_round
        was_averaged = averaging.num_rounds > self._num_rounds
        self._num_rounds = averaging.num_rounds
        return dict(
            share_averaged=averaging.share_averaged if was_averaged else 0.0,
            group_size=averaging.group_size if was_averaged else 1,
            round_seconds=averaging.seconds if was_averaged else 0.0,
            suspects=[suspect.peer_id for suspect in averaging.suspects],
        )


@contextlib.contextmanager
def joined_swarm(
    settings: ChaoticPeerSettings, run: TrainingRun, compute: ComputeOptions, on_event: EventHandler
) -> Iterator[SwarmPeerInChaos]:
    """Join the run's swarm once its auxiliary peer is there."""
    while not (run := RunSnapshot.read(settings.repository).run).entry_addresses:
        time.sleep(0.5)  # the auxiliary peer is still starting
    parts = PeerContext(
        username=settings.name,
        package_version="chaos",
        on_event=on_event,
        takes_signals=True,
        # Honest until told otherwise; nobody averages parts in a sparse run, so there it has nothing to lie about.
        averager_type=None if run.synchronisation == "sparse" else HostileAverager,
    )
    network = NetworkOptions(host_addresses=(settings.host_address,), announce_addresses=(settings.announce_address,))
    seed = stable_seed(settings.seed)
    with join_run(
        settings.repository, open_task, network=network, compute=compute, parts=parts, seed=seed
    ) as membership:
        yield SwarmPeerInChaos(membership)
