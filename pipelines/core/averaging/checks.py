"""What all members know of a round, and what an averager is given to check its averages by: `Checks`."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.p2p import PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import averaging_pb2

from pipelines.core.averaging.group.blocklist import Blocklist
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.wire.signed_parts import RoundAnswers, RoundInputs
from pipelines.core.swarm.upload_limit import UploadLimit

FIRST_DISTRUST_SECONDS, LONGEST_DISTRUST_SECONDS = 5.0, 3600.0
"""Who is distrusted for what only this peer knows is avoided for this long, twice as long each time."""

Messages = AsyncIterator[averaging_pb2.AveragingData]


@dataclass(frozen=True, kw_only=True)
class PartForm:
    """What a part of the vector looks like."""

    shape: torch.Size
    info: CompressionInfo


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """What all members know of a round."""

    group_id: bytes
    senders: frozenset[PeerID]
    parts: Mapping[PeerID, Sequence[PartForm]]
    """Each reducer's share of the vector."""

    compression: CompressionBase
    rule: AggregationRule
    has_signed: Callable[[PeerID, str, bytes, bytes], bool]
    """Whether the key in a peer's token has signed a statement."""


class CheckedRound(Protocol):
    """What can be asked about a round."""

    group_id: bytes
    ordered_peer_ids: Sequence[PeerID]
    modes: Sequence[AveragingMode]
    terms: RoundTerms
    inputs: RoundInputs
    answers: RoundAnswers
    sent: Mapping[tuple[PeerID, int], tuple[float, bytes]]
    """Weight and digest of this peer's own parts, by reducer and number, to which it has itself answered."""


class Checks:
    """Checks no averages: it only avoids peers that this one distrusts. In the averager's process."""

    def __init__(
        self,
        peer_id: PeerID,
        stub_of: Callable[[PeerID], StubBase],
        name: Callable[[PeerID, Misbehaviour], None],
        upload_limit: UploadLimit | None = None,
    ) -> None:
        """`stub_of` returns what another member can be asked by; `name` is told who has done what."""
        self._peer_id, self._stub_of, self._name, self._upload_limit = peer_id, stub_of, name, upload_limit
        self._distrusted = Blocklist(FIRST_DISTRUST_SECONDS, LONGEST_DISTRUST_SECONDS)

    def avoids(self, peer: PeerID) -> bool:
        """Return whether a peer is to be kept out of groups now."""
        return self._distrusted.avoids(peer, time.monotonic())

    def distrust(self, peer: PeerID, offence: Misbehaviour) -> None:
        """Name a peer for what only this one knows, and avoid it for a while, twice as long each time."""
        self._distrusted.avoid(peer, time.monotonic())
        self._name(peer, offence)

    def open(self, runner: CheckedRound, tokens: Mapping[PeerID, str]) -> None:
        """Keep what members may ask about a round that begins now."""

    def close(self, group_id: bytes) -> None:
        """Forget a round."""

    def begin(self, group_id: bytes) -> None:
        """Check answers of a round that has succeeded, in the background."""

    def end(self) -> None:
        """Leave all checks."""

    def shown(self, member: PeerID, request: averaging_pb2.DownloadData) -> Sequence[averaging_pb2.AveragingData]:
        """Return what one of this peer's answers was made of, to a member of that round."""
        return ()

    async def hear(self, accuser: PeerID, messages: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Hear what a member has to show against another one."""
        yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
