"""A chaotic peer of a run whose only wire is the Hub: see `chaotic_peer`."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from pipelines.core.peer.reports import StepReport
from pipelines.core.peer.volunteer import EventHandler
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.task import Batch
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.hub_rounds.closing import NextRound
from pipelines.features.hub_rounds.exchange import ContributionOffer, RoundExchange
from pipelines.features.hub_rounds.stepping import ClosedRound
from pipelines.features.sparse.codec import LEVEL_TYPE, LEVELS_START, SparseCodec
from pipelines.features.sparse.mean import mean
from pipelines.joining.over_the_hub import HubMembership, join_over_hub
from pipelines.tasks.choice import open_task
from pipelines.tools.chaos.chaotic_peer import ChaoticPeerSettings
from pipelines.tools.chaos.faults.fault_script import FaultKind

LIE_FACTOR = -1000.0


class HostileExchange(RoundExchange):
    """Offers other bytes than the peer's own while it attacks."""

    attack = ""
    codec: SparseCodec | None = None

    def begin(
        self,
        terms: NextRound,
        deadline: float,
        offer: ContributionOffer | None,
        on_closed: Callable[[ClosedRound], object] = lambda _closed: None,
    ) -> None:
        """See `RoundExchange`."""
        if offer is not None and self.codec is not None and self.attack in LIES:
            content = LIES[self.attack](offer.content, self.codec)
            digest = hashlib.sha256(content).hexdigest()
            pointer = dataclasses.replace(offer.pointer, digest=digest, size=len(content))
            offer = ContributionOffer(pointer=pointer, content=content)
        super().begin(terms, deadline, offer, on_closed)


def _nans(content: bytes, codec: SparseCodec) -> bytes:
    """Return a contribution whose levels, the magnitudes of its values, are none."""
    end = LEVELS_START + 2 * LEVEL_TYPE.itemsize * len(codec.layout.shapes)
    levels = np.full((end - LEVELS_START) // LEVEL_TYPE.itemsize, np.nan, LEVEL_TYPE)
    return content[:LEVELS_START] + levels.tobytes() + content[end:]


def _lie(content: bytes, codec: SparseCodec) -> bytes:
    """Return a contribution times -1000."""
    update = codec.decode(content)
    return codec.encode([LIE_FACTOR * tensor for tensor in mean(codec, [update], [1.0])], update.num_samples)


LIES: Mapping[str, Callable[[bytes, SparseCodec], bytes]] = {FaultKind.NAN: _nans, FaultKind.LIAR: _lie}


class HubPeerInChaos:
    """See `ObservedPeer`."""

    def __init__(self, membership: HubMembership, exchange: HostileExchange) -> None:
        self._membership, self._peer, self._exchange = membership, membership.peer, exchange
        exchange.codec = self._peer.state.codec
        self.task: Any = membership.task
        self.model, self.stop = membership.computation.model, membership.stop

    @property
    def epoch(self) -> int:
        """See `ObservedPeer`."""
        return self._peer.epoch

    def train(self, through: Callable[[Iterator[Batch]], Iterator[Batch]]) -> Iterator[StepReport]:
        """See `ObservedPeer`."""
        return self._membership.train(through)

    def attack(self, name: str) -> None:
        """See `ObservedPeer`."""
        self._exchange.attack = name

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """See `ObservedPeer`."""
        parameters = self._peer.state.training.optimized_parameters
        return {f"{number:04d}": parameter for number, parameter in enumerate(parameters)}

    def sent_and_kept(self, report: StepReport, num_samples: int) -> tuple[int, int]:
        """See `ObservedPeer`; what a round has left out is sent again."""
        if not self._counted():
            return 0, num_samples
        num_kept = report.num_samples - self._peer.num_samples
        return num_samples - num_kept, num_kept

    def round_figures(self) -> Mapping[str, object]:
        """See `ObservedPeer`."""
        newest = self._peer.newest_round
        return dict(
            share_averaged=float(self._counted()),
            group_size=len(newest.contents) if newest else 1,
            round_seconds=0.0,
            suspects=[one.user for one in newest.closed.left_out] if newest else [],
            digest=self._peer.state.digest,
        )

    def _counted(self) -> bool:
        newest = self._peer.newest_round
        return newest is not None and self._membership.username in {pointer.user for pointer in newest.pointers}


@contextlib.contextmanager
def joined_over_hub(
    settings: ChaoticPeerSettings, _run: TrainingRun, compute: ComputeOptions, on_event: EventHandler
) -> Iterator[HubPeerInChaos]:
    """Join the run."""
    made: list[HostileExchange] = []

    def exchange(*parts: Any) -> HostileExchange:
        made.append(HostileExchange(*parts))
        return made[-1]

    with join_over_hub(
        settings.repository, open_task, compute=compute, on_event=on_event, takes_signals=True, exchange_type=exchange
    ) as membership:
        yield HubPeerInChaos(membership, made[-1])
