"""One round as this peer takes part in it: what its ends, the taking of its answers and the checks of these share."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.p2p import PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import averaging_pb2

from pipelines.core.admission.averaging_gate import GroupSignatures
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.wire.signed_parts import RoundAnswers, RoundInputs
from pipelines.core.averaging.wire.streams import ParallelStreams
from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT

PREFETCH = 1
"""Parts of each stream that are compressed or checked ahead."""


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


@dataclass(kw_only=True)
class _Arrived:
    """What a peer has delivered in a round, and when, in seconds of the monotonic clock."""

    first_bytes: int
    first: float
    num_bytes: int = 0
    last: float = 0.0


class Arrivals:
    """What peers have delivered here in a round, parts and answers, in Mbit/s."""

    def __init__(self) -> None:
        self._began, self._arrived = time.monotonic(), dict[PeerID, _Arrived]()

    async def counted(
        self, peer: PeerID, messages: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Pass on and count what a peer delivers."""
        async for message in messages:
            number, now = len(message.tensor_part.buffer), time.monotonic()
            arrived = self._arrived.setdefault(peer, _Arrived(first_bytes=number, first=now))
            arrived.num_bytes, arrived.last = arrived.num_bytes + number, now
            yield message

    def rates_until_last(self) -> dict[PeerID, float]:
        """Return the rate of each peer from which something has come, from the round's start to its last message."""
        return {
            peer: arrived.num_bytes / BYTES_PER_MEGABIT / max(arrived.last - self._began, 1e-3)
            for peer, arrived in self._arrived.items()
            if arrived.num_bytes
        }

    def rates_so_far(self, peers: Collection[PeerID]) -> dict[PeerID, float]:
        """Return the rates of these peers since their first message, which is not counted, and its way neither.

        A slow link, too, takes some bytes at once.
        """
        now, rates = time.monotonic(), dict.fromkeys(peers, 0.0)
        for peer in rates.keys() & self._arrived.keys():
            arrived = self._arrived[peer]
            num_bytes = arrived.num_bytes - arrived.first_bytes
            rates[peer] = num_bytes / BYTES_PER_MEGABIT / max(now - arrived.first, 1e-3)
        return rates


@dataclass(frozen=True, kw_only=True)
class RoundState:
    """See the module."""

    peer_id: PeerID
    """This peer's."""

    weight: float = 1.0
    """Of this peer's vector."""

    modes: Mapping[PeerID, AveragingMode]
    """How each member takes part, in the group's order."""

    parts: Mapping[PeerID, Sequence[tuple[torch.Tensor, CompressionInfo]]]
    """This peer's vector as it is cut for each reducer: views of the averager's tensors."""

    terms: RoundTerms
    streams: Mapping[PeerID, ParallelStreams]
    """In which streams a sender's parts go to each reducer."""

    signatures: GroupSignatures
    stub_of: Callable[[PeerID], StubBase]
    """What another member can be asked by."""

    count_bytes: Callable[[int], None]
    """Told as they are sent: answers to slower peers continue after this peer's own result is complete."""

    is_last_attempt: bool
    """Whether a part that nobody has an average of counts as zero, instead of another attempt."""

    sender_timeout: float | None = None
    """After how many silent seconds a sender is given up; None: never."""

    reducer_timeout: float | None = None
    inputs: RoundInputs
    answers: RoundAnswers
    sent: dict[tuple[PeerID, int], tuple[float, bytes]] = field(default_factory=dict)
    """Weight and digest of this peer's own parts, by reducer and number, to which that reducer has itself answered."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    offences: set[tuple[PeerID, Misbehaviour]] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once this peer has all answers, or has given up: from then on nobody is to blame."""

    @classmethod
    def of(
        cls,
        *,
        group_id: bytes,
        modes: Mapping[PeerID, AveragingMode],
        tensors: Sequence[torch.Tensor],
        peer_fractions: Sequence[float],
        compression: CompressionBase,
        part_size_bytes: int,
        tensor_infos: Sequence[CompressionInfo] | None = None,
        rule: AggregationRule,
        signatures: GroupSignatures,
        **fields: Any,
    ) -> Self:
        """Return the state of a round that begins: of these tensors each member reduces its fraction."""
        cut = TensorPartContainer(tensors, peer_fractions, compression, part_size_bytes, tensor_infos)
        parts = dict(zip(modes, map(tuple, cut._input_parts_by_peer), strict=True))
        return cls(
            modes=modes,
            parts=parts,
            terms=RoundTerms(
                group_id=group_id,
                senders=frozenset(peer for peer, mode in modes.items() if mode != AveragingMode.AUX),
                parts={
                    reducer: tuple(PartForm(shape=part.shape, info=info) for part, info in share)
                    for reducer, share in parts.items()
                },
                compression=compression,
                rule=rule,
                has_signed=signatures.has_signed,
            ),
            streams={
                reducer: ParallelStreams.deal([part.numel() for part, _ in share], len(modes))
                for reducer, share in parts.items()
            },
            signatures=signatures,
            inputs=RoundInputs(modes),
            answers=RoundAnswers(modes),
            **fields,
        )

    @property
    def group_id(self) -> bytes:
        """Names the round."""
        return self.terms.group_id

    @property
    def senders(self) -> list[PeerID]:
        """Members that send a vector, in the group's order."""
        return [peer for peer in self.modes if peer in self.terms.senders]

    @property
    def sends(self) -> bool:
        """Whether this peer does; else it listens, and helps if it reduces."""
        return self.peer_id in self.terms.senders

    def reads_last(self, peer: PeerID) -> bool:
        """Tell whether a peer reads its answers only when it has sent everything: clients do.

        hivemind also has those do it that reduce nothing: a slow link then carries its two directions one after the
        other.
        """
        return self.modes[peer] == AveragingMode.CLIENT

    @property
    def share_answered(self) -> float:
        """Share of the vector whose average has arrived, in [0, 1]."""
        missing = sum(self.parts[peer][index][0].numel() for peer in self.modes for index in self.missing(peer))
        return 1.0 - missing / max(1, self.total_size)

    @property
    def total_size(self) -> int:
        """Number of values in the vector."""
        return sum(part.numel() for share in self.parts.values() for part, _ in share)

    def missing(self, reducer: PeerID) -> range:
        """Return the parts of a reducer's share of which this peer has no answer; they come in order."""
        return range(len(self.answers.held(reducer)), len(self.parts[reducer]))

    def name(self, peer_id: PeerID, offence: Misbehaviour) -> None:
        """Note who has done what."""
        self.offences.add((peer_id, offence))
