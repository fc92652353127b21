"""One round as this peer takes part in it: what its runner, its sending end and its reducing end share."""

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionInfo
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from pipelines.core.averaging.checks import PartForm, RoundTerms
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.wire.streams import ParallelStreams
from pipelines.core.swarm.upload_limit import BYTES_PER_MEGABIT


class Signatures(Protocol):
    """How members of a group sign, and check each other's signatures."""

    def sign(self, statement: bytes) -> bytes:
        """Return this peer's signature."""

    def verify(self, peer_id: PeerID, statement: bytes, signature: bytes) -> bool:
        """Tell whether a member has signed a statement."""

    def has_signed(self, peer_id: PeerID, token: str, statement: bytes, signature: bytes) -> bool:
        """Tell whether the key that a peer's token names has signed a statement."""


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
    """See the module. `members` are in the group's order; what is by reducer is in that order, too."""

    peer_id: PeerID
    """This peer's."""

    weight: float
    """Of this peer's vector."""

    members: Sequence[PeerID]
    senders: Sequence[PeerID]
    container: TensorPartContainer
    """Cuts this peer's vector into parts, and takes the averages; it drops its parts when it has all of these."""

    terms: RoundTerms
    own_infos: Sequence[CompressionInfo]
    """How the parts that this peer reduces are compressed."""

    streams: Sequence[ParallelStreams]
    """In which streams a sender's parts go to each reducer."""

    signatures: Signatures
    count_bytes: Callable[[int], None]
    """Told as they are sent: answers to slower peers continue after this peer's own result is complete."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    offences: set[tuple[PeerID, Misbehaviour]] = field(default_factory=set)

    @classmethod
    def of(
        cls, runner: AllReduceRunner, rule: AggregationRule, signatures: Signatures, count_bytes: Callable[[int], None]
    ) -> Self:
        """Return the state of a round that hivemind's runner has prepared."""
        container, members = runner.tensor_part_container, runner.ordered_peer_ids
        parts_by_reducer = container._input_parts_by_peer
        return cls(
            peer_id=runner.peer_id,
            weight=runner.weight,
            members=members,
            senders=runner.sender_peer_ids,
            container=container,
            terms=RoundTerms(
                group_id=runner.group_id,
                senders=frozenset(runner.sender_peer_ids),
                parts={
                    reducer: tuple(PartForm(shape=part.shape, info=info) for part, info in parts)
                    for reducer, parts in zip(members, parts_by_reducer, strict=True)
                },
                compression=container.compression,
                rule=rule,
                has_signed=signatures.has_signed,
            ),
            # Copied, because the container drops them when this peer has its result, and others may still wait.
            own_infos=tuple(info for _, info in parts_by_reducer[members.index(runner.peer_id)]),
            streams=tuple(
                ParallelStreams.deal([part.numel() for part, _ in parts], len(members)) for parts in parts_by_reducer
            ),
            signatures=signatures,
            count_bytes=count_bytes,
        )

    @property
    def group_id(self) -> bytes:
        """Names the round."""
        return self.terms.group_id

    def parts_of_stream(self, reducer_index: int, number: int) -> tuple[tuple[torch.Tensor, CompressionInfo], ...]:
        """Return this peer's parts that go to a reducer in one stream; none when the round is over."""
        parts = tuple(self.container._input_parts_by_peer[reducer_index])
        return tuple(parts[index] for index in self.streams[reducer_index].part_indices(number)) if parts else ()

    def name(self, peer_id: PeerID, offence: Misbehaviour) -> None:
        """Note who has done what."""
        self.offences.add((peer_id, offence))
