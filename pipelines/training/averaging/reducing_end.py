"""The reducing end of a round: takes the senders' parts, none of which it trusts, and answers with signed averages."""

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from hivemind.averaging.allreduce import AllReduceRunner, AveragingMode
from hivemind.averaging.partition import BannedException
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import (
    achain,
    aenumerate,
    aiter_with_timeout,
    amap_in_executor,
    anext,
    as_aiter,
    attach_event_on_finished,
)

from pipelines.swarm.upload_limit import BYTES_PER_MEGABIT
from pipelines.training.averaging.checks import PartForm, RoundTerms
from pipelines.training.averaging.reduce.reducer import RobustPartReducer
from pipelines.training.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.training.averaging.reduce.suspects import Offence, PartRefusedError
from pipelines.training.averaging.wire.codec import read_part
from pipelines.training.averaging.wire.parallel_streams import ParallelStreams
from pipelines.training.averaging.wire.signed_answers import answer_statement, seal
from pipelines.training.averaging.wire.signed_inputs import RoundInputs, part_statement
from pipelines.training.averaging.wire.streams import held_back

LATE_SHARE = 0.5
"""Share of an aborted round's time. A peer that kept others waiting for longer was the cause."""


@dataclass(kw_only=True)
class RoundMemory:
    """What an averager keeps from one round to judge the next."""

    earlier_digests: dict[PeerID, frozenset[bytes]] = field(default_factory=dict)
    """Digests of the parts that each peer sent here in the last complete round."""

    typical_value: float = 0.0
    """Root mean square of the values that the median peer sent here in the last complete round."""


@dataclass(frozen=True, kw_only=True)
class _Received:
    part: torch.Tensor
    weight: float


@dataclass(kw_only=True)
class _Arrived:
    """What a peer has delivered in a round, and when, in seconds of the monotonic clock."""

    first_bytes: int
    first: float
    num_bytes: int = 0
    last: float = 0.0

    def rate_since_first(self, now: float) -> float:
        """Return the Mbit/s since the first message."""
        return (self.num_bytes - self.first_bytes) / BYTES_PER_MEGABIT / max(now - self.first, 1e-3)


class Signatures(Protocol):
    """How members of a group sign, and check each other's signatures."""

    def sign(self, statement: bytes) -> bytes:
        """Return this peer's signature."""

    def verify(self, peer_id: PeerID, statement: bytes, signature: bytes) -> bool:
        """Tell whether a member has signed a statement."""

    def has_signed(self, peer_id: PeerID, token: str, statement: bytes, signature: bytes) -> bool:
        """Tell whether the key that a peer's token names has signed a statement."""


class ReducingEnd(AllReduceRunner):
    """Aggregates this peer's share of the vector; the other end is `SendingEnd`."""

    tensor_part_reducer: RobustPartReducer
    """In place of hivemind's own."""

    def __init__(
        self,
        *,
        rule: AggregationRule,
        recorded_weights: Mapping[PeerID, float] | None,
        memory: RoundMemory,
        count_bytes: Callable[[int], None],
        signatures: Signatures,
        **kwargs: Any,
    ) -> None:
        """Prepare one round.

        `recorded_weights`: the most weight that each peer's signed records make plausible; None if none are known.
        """
        super().__init__(**kwargs)
        self._memory = memory
        self.tensor_part_container.return_deltas = False  # a part that fails keeps its local values
        self._signatures = signatures
        self._averages: dict[int, asyncio.Future[averaging_pb2.AveragingData]] = {}
        self._asked: asyncio.Queue[int] = asyncio.Queue()  # parts of which an answer is made
        self._began, self._arrived = time.monotonic(), dict[PeerID, _Arrived]()
        self.offences: set[tuple[PeerID, Offence]] = set()
        self.lost_senders: set[PeerID] = set()
        # Counted as they are sent: answers to slower peers continue after this peer's own result is complete.
        self._count_bytes = count_bytes
        # Copied, because the container drops them when this peer has its result, and others may still wait.
        parts_by_reducer = self.tensor_part_container._input_parts_by_peer
        own_index = self.ordered_peer_ids.index(self.peer_id)
        self._own_part_infos = tuple(info for _, info in parts_by_reducer[own_index])
        self.terms = RoundTerms(
            group_id=self.group_id,
            senders=frozenset(self.sender_peer_ids),
            parts={
                reducer: tuple(PartForm(shape=part.shape, info=info) for part, info in parts)
                for reducer, parts in zip(self.ordered_peer_ids, parts_by_reducer, strict=True)
            },
            compression=self.tensor_part_container.compression,
            rule=rule,
            has_signed=signatures.has_signed,
        )
        self.inputs = RoundInputs(self.ordered_peer_ids)
        self._streams_by_reducer = tuple(
            ParallelStreams.deal([part.numel() for part, _ in parts], self.group_size) for parts in parts_by_reducer
        )
        self._streams = self._streams_by_reducer[own_index]
        self._open_streams: dict[PeerID, set[int]] = {peer: set() for peer in self.sender_peer_ids}
        self._digests: dict[PeerID, set[bytes]] = {peer: set() for peer in self.sender_peer_ids}
        recorded = recorded_weights or {}
        self.tensor_part_reducer.finished.set()  # hivemind's own, which would report that nothing ever arrived
        self.tensor_part_reducer = RobustPartReducer(
            tuple(part.shape for part in self.parts_for_local_averaging),
            len(self.sender_peer_ids),
            rule=rule,
            recorded_weights={i: recorded[peer] for i, peer in enumerate(self.sender_peer_ids) if peer in recorded},
        )

    def end_round(self) -> set[tuple[PeerID, Offence]]:
        """Remember what later rounds are judged by, and return the offences.

        Call it when the round has succeeded: after a failed one honest peers send the same parts again.
        """
        reducer, senders = self.tensor_part_reducer, self.sender_peer_ids
        self.offences |= {(senders[index], Offence.FAR_OFF) for index in reducer.far_off_senders}
        self.offences |= {(senders[index], Offence.EXCESS_WEIGHT) for index in reducer.excess_weight_senders}
        self._memory.earlier_digests = {peer: frozenset(digests) for peer, digests in self._digests.items()}
        self._memory.typical_value = reducer.typical_value or self._memory.typical_value
        return self.offences

    @property
    def late_senders(self) -> set[PeerID]:
        """Peers that the others' parts waited for during most of the round, and still do; none if it is all of them.

        Who only began late does not count, and once everything is averaged nobody does: then this peer waits for
        answers of others, who may wait for somebody else.
        """
        reducer = self.tensor_part_reducer
        late = {index for index in reducer.awaited if reducer.shares_waited[index] >= LATE_SHARE}
        return {self.sender_peer_ids[index] for index in late} if len(late) < len(self.sender_peer_ids) else set()

    def should_delay_results(self, peer_id: PeerID) -> bool:
        """Tell whether a peer reads its answers only when it has sent everything: clients do.

        hivemind also has those do it that reduce nothing: a slow link then carries its two directions one after the
        other.
        """
        return self.modes[self.ordered_peer_ids.index(peer_id)] == AveragingMode.CLIENT

    def delivered_mbit(self) -> dict[bytes, float]:
        """Return the rate at which each peer has delivered parts and answers here, from the round's start to its last.

        In Mbit/s, by peer id. A peer from which nothing has come, or that was lost, is left out.
        """
        absent = self.lost_senders | self.banned_senders
        return {
            peer.to_bytes(): arrived.num_bytes / BYTES_PER_MEGABIT / max(arrived.last - self._began, 1e-3)
            for peer, arrived in self._arrived.items()
            if arrived.num_bytes and peer not in absent
        }

    @property
    def share_reduced(self) -> float:
        """Share of the vector that this peer reduces, in [0, 1]."""
        own = sum(part.numel() for part in self.parts_for_local_averaging)
        return own / max(1, self.tensor_part_container.total_size)

    def late_mbit(self) -> dict[PeerID, float]:
        """Return the rate at which the senders that the others wait for have delivered parts here so far, in Mbit/s.

        The first message is not counted, and its way neither: a slow link, too, takes some bytes at once.
        """
        now = time.monotonic()
        return {
            peer: self._arrived[peer].rate_since_first(now) if peer in self._arrived else 0.0
            for peer in self.late_senders
        }

    async def _arriving(
        self, peer: PeerID, messages: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Count what a peer delivers."""
        async for message in messages:
            number, now = len(message.tensor_part.buffer), time.monotonic()
            arrived = self._arrived.setdefault(peer, _Arrived(first_bytes=number, first=now))
            arrived.num_bytes, arrived.last = arrived.num_bytes + number, now
            yield message

    async def drop_late_senders(self) -> None:
        """Do without what the others wait for, once the last attempt has taken as long as it may.

        If that is most of the others, it is this peer that is cut off or slow, and they have no answers but its own.
        """
        late = self.late_senders - {self.peer_id}
        if 2 * len(late) < len(self.sender_peer_ids):
            for peer in late:
                await self._ban_sender(peer)

    def name_late_senders(self) -> None:
        """Report those that the others were waiting for when the round was aborted."""
        for peer in self.late_senders:
            self._name(peer, Offence.SILENT)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Greet a sender, take the parts of one stream and answer with their aggregate with the other senders'.

        A stream that ends before its first part says nothing about the sender, who may open another one; one that ends
        later ends the sender's part in the round.
        """
        sender = context.remote_id
        hello = await anext(stream)
        if refusal := self._refusal(hello, context):
            yield refusal
            return
        yield averaging_pb2.AveragingData(code=averaging_pb2.ACCEPTED)
        try:
            first = await asyncio.wait_for(anext(stream), self.sender_timeout)
        except (StopAsyncIteration, TimeoutError):
            return
        number, open_streams = stream_number_of(hello), self._open_streams[sender]
        if number in open_streams or sender in self.banned_senders:
            if number in open_streams:
                self._name(sender, Offence.REPLAYED)
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        open_streams.add(number)
        if len(open_streams) == len(self._streams.numbers):
            self.active_senders.add(sender)
        if len(self.active_senders) == len(self.sender_peer_ids):
            self.all_senders_started.set()
        all_received = asyncio.Event()
        parts = attach_event_on_finished(achain(as_aiter(first), stream), all_received)
        answers = self._answers_to_stream(parts, self.sender_peer_ids.index(sender), number)
        if self.should_delay_results(sender):
            answers = held_back(answers, all_received)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        except Exception:
            yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
            raise

    def _refusal(self, hello: averaging_pb2.AveragingData, context: P2PContext) -> averaging_pb2.AveragingData | None:
        if context.remote_id not in self.sender_peer_ids:
            if context.remote_id in self.ordered_peer_ids:
                self._name(context.remote_id, Offence.NOT_A_SENDER)
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        if stream_number_of(hello) not in self._streams.numbers:
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        return self._check_reasons_to_reject(hello, context)

    async def _answers_to_stream(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int, number: int
    ) -> AsyncGenerator[averaging_pb2.AveragingData]:
        """Aggregate the parts of a sender's stream and answer in the run's own codec."""
        sender, reducer, num_answered = self.sender_peer_ids[sender_index], self.tensor_part_reducer, 0
        part_indices = self._streams.part_indices(number)
        try:
            async for received in amap_in_executor(
                partial(self._check_input, sender, part_indices),
                aenumerate(self._arriving(sender, aiter_with_timeout(stream, self.sender_timeout))),
                max_prefetch=self.tensor_part_container.prefetch,
            ):
                part_index = part_indices[num_answered]
                average = await reducer.accumulate_part(sender_index, part_index, received.part, received.weight)
                answer = await self._answer(average, part_index)
                self._count_bytes(len(answer.tensor_part.buffer))
                num_answered += 1
                yield answer
        except (PartRefusedError, BannedException) as error:
            if isinstance(error, PartRefusedError):
                self._name(sender, error.offence)
            await self._ban_sender(sender)  # at once: the others are waiting for this sender's part
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        finally:
            if num_answered != len(part_indices):
                await self._ban_sender(sender)

    def _check_input(
        self, sender: PeerID, part_indices: Sequence[int], numbered_message: tuple[int, averaging_pb2.AveragingData]
    ) -> _Received:
        """Return a sender's part and weight; runs in a thread. Raises PartRefusedError."""
        number, message = numbered_message
        if number >= len(part_indices):
            raise PartRefusedError(Offence.REPLAYED, "more parts than the vector has")
        if not (math.isfinite(message.weight) and message.weight >= 0):
            raise PartRefusedError(Offence.BAD_WEIGHT, f"weight {message.weight}")
        digest, part_index = hashlib.sha256(message.tensor_part.buffer).digest(), part_indices[number]
        statement = part_statement(self.group_id, sender, self.peer_id, part_index, message.weight, digest)
        if not self._signatures.verify(sender, statement, message.peer_id):
            raise PartRefusedError(Offence.UNSIGNED, "another signature or none")
        part = self._read(message.tensor_part, part_index)
        if part.any():
            if message.weight == 0:
                self._name(sender, Offence.NO_WEIGHT)
            self._notice_replay(digest, sender)
        self.inputs.keep(part_index, sender, message, digest)
        return _Received(part=part, weight=message.weight)

    def _notice_replay(self, digest: bytes, sender: PeerID) -> None:
        if digest in self._digests[sender] or digest in self._memory.earlier_digests.get(sender, ()):
            raise PartRefusedError(Offence.REPLAYED, "the same values as in an earlier part")
        self._digests[sender].add(digest)

    async def _answer(self, average: torch.Tensor, part_index: int) -> averaging_pb2.AveragingData:
        if part_index not in self._averages:  # compressed and signed once for all members
            loop = asyncio.get_running_loop()
            self._asked.put_nowait(part_index)
            self._averages[part_index] = loop.run_in_executor(None, self._signed, average, part_index)
        return await asyncio.shield(self._averages[part_index])

    def _signed(self, average: torch.Tensor, part_index: int) -> averaging_pb2.AveragingData:
        weights = self.tensor_part_reducer.weights_used[part_index]
        contributions = self.inputs.use(part_index, {self.sender_peer_ids[i]: weight for i, weight in weights.items()})
        part = self._compress(average, part_index)
        statement = answer_statement(self.group_id, self.peer_id, part_index, part.buffer, contributions)
        sealed = seal(self._signatures.sign(statement), contributions)
        return averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=part, peer_id=sealed)

    def _compress(self, values: torch.Tensor, part_index: int) -> runtime_pb2.Tensor:
        info = self._own_part_infos[part_index]
        return self.tensor_part_container.compression.compress(values, info, allow_inplace=False)

    def _read(self, message: runtime_pb2.Tensor, part_index: int) -> torch.Tensor:
        """Decode one of the parts that this peer reduces; raises PartRefusedError."""
        shape = self.tensor_part_reducer.part_shapes[part_index]
        return read_part(message, self.tensor_part_container.compression, self._own_part_infos[part_index], shape)

    async def _end_unbegun_sender(self, peer_id: PeerID) -> None:
        """Do without a sender to which no stream leads, unless its own have begun: they will say when they end."""
        if peer_id in self._open_streams and not self._open_streams[peer_id]:
            await self._ban_sender(peer_id)

    async def _ban_sender(self, peer_id: PeerID) -> None:
        was_caught = any(peer == peer_id for peer, _ in self.offences)
        if not (was_caught or peer_id in self.banned_senders or self._future.done()):
            # A failed machine or link. What a caught offender lacks of the average is its own problem.
            self.lost_senders.add(peer_id)
            self._name(peer_id, Offence.SILENT)
        await super()._ban_sender(peer_id)

    def _name(self, peer_id: PeerID, offence: Offence) -> None:
        self.offences.add((peer_id, offence))


def stream_number_of(hello: averaging_pb2.AveragingData) -> int:
    """Return the stream that a hello names, or -1 for one that names none."""
    return hello.peer_id[0] if len(hello.peer_id) == 1 else -1
