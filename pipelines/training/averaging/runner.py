"""One all-reduce among a group of peers, in which nobody is trusted: see `TrustedAllReduceRunner`."""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.averaging.partition import AllreduceException, BannedException
from hivemind.compression import CompressionInfo
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

from pipelines.swarm.upload_limit import UploadLimit, pass_bytes
from pipelines.training.averaging.reduce.reducer import RobustPartReducer
from pipelines.training.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.training.averaging.reduce.suspects import Offence, PartRefusedError
from pipelines.training.averaging.wire.codec import read_part
from pipelines.training.averaging.wire.parallel_streams import ParallelStreams, in_turn
from pipelines.training.averaging.wire.streams import first_messages, held_back, open_greeted

MAX_ANSWER_RATIO = 10.0
"""An answer is impossible if its norm exceeds both this multiple of this peer's own part and ..."""

MAX_ANSWER_RATIO_TO_OTHERS = 100.0
"""... this multiple of what peers typically sent here for other parts; layers differ, so the limit is wider."""

LATE_SHARE = 0.5
"""Share of an aborted round's time. A peer that kept others waiting for longer was the cause."""

SENDER_SECONDS = 15.0
"""How long to wait for a sender if the averager was given no time-out."""

OPENINGS_PER_TIMEOUT = 3
"""Attempts to open a stream before its reader would drop the sender."""


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


class TrustedAllReduceRunner(AllReduceRunner):
    """An all-reduce that checks its inputs, aggregates by the run's rule, and reports who misbehaved.

    Senders are not trusted: parts and weights are checked and bounded before they are aggregated, and a sender of
    anything impossible is excluded from the round at once. Reducers are hardly trusted: an answer that is not finite or
    too long is not used. A stream that fails to open is retried.

    In hivemind every member receives its own `average - own part` and adds it to what it has: members then differ by
    rounding, and in 8 bits by 3e-3 to 9e-3 of a tensor's norm after four epochs (measured, three peers). Here:

    - with `answers_are_averages` all members, including the reducer, take the average as it came out of the codec, so
      that whatever they had before, they agree in every bit that they have received;
    - without it members add differences, which keeps parameters from being rounded to 8 bits; the reducer sends its own
      part through the codec like everybody's, so that members that agreed before a round agree after it.
    """

    tensor_part_reducer: RobustPartReducer
    """In place of hivemind's own."""

    def __init__(
        self,
        *,
        rule: AggregationRule,
        recorded_weights: Mapping[PeerID, float] | None,
        memory: RoundMemory,
        notices_replays: bool,
        answers_are_averages: bool,
        count_bytes: Callable[[int], None],
        upload_limit: UploadLimit | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare one round.

        `recorded_weights`: the most weight that each peer's signed records make plausible; None if none are known.
        `notices_replays`: whether a repeated part is an offence; gradients never repeat, parameters may.
        """
        super().__init__(**kwargs)
        self._memory, self._notices_replays = memory, notices_replays
        self.answers_are_averages = answers_are_averages
        self.tensor_part_container.return_deltas = not answers_are_averages  # a part that fails keeps its local values
        self._averages: dict[int, asyncio.Future[runtime_pb2.Tensor]] = {}
        self.offences: set[tuple[PeerID, Offence]] = set()
        self.lost_senders: set[PeerID] = set()
        # Counted as they are sent: answers to slower peers continue after this peer's own result is complete.
        self._count_bytes, self._upload_limit = count_bytes, upload_limit
        # Copied, because the container drops them when this peer has its result, and others may still wait.
        parts_by_reducer = self.tensor_part_container._input_parts_by_peer
        own_index = self.ordered_peer_ids.index(self.peer_id)
        self._own_part_infos = tuple(info for _, info in parts_by_reducer[own_index])
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

    @property
    def share_averaged(self) -> float:
        """Share of the vector whose average has arrived, in [0, 1]."""
        container = self.tensor_part_container
        return 1.0 - container.failed_size / max(1, container.total_size)

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
        """Peers that the others' parts waited for during most of the round so far; none if it is all of them."""
        shares = zip(self.sender_peer_ids, self.tensor_part_reducer.shares_waited, strict=True)
        late = {peer for peer, share in shares if share >= LATE_SHARE}
        return late if len(late) < len(self.sender_peer_ids) else set()

    def name_late_senders(self) -> None:
        """Report those that the others were waiting for when the round was aborted."""
        for peer in self.late_senders:
            self._name(peer, Offence.SILENT)

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        """Send a reducer its parts of the local vector and register its answers; the reducer may be this peer."""
        peer_index = self.ordered_peer_ids.index(peer_id)
        container, part_index = self.tensor_part_container, 0
        is_own = peer_id == self.peer_id
        try:
            async with aclosing(self._own_answers() if is_own else self._answers(peer_id, peer_index)) as answers:
                async for answer in answers:
                    container.register_processed_part(peer_index, part_index, answer)
                    part_index += 1
            if part_index != container.num_parts_by_peer[peer_index]:
                raise AllreduceException(f"{peer_id} answered {part_index} parts of the vector and ended the stream")
        except BaseException as error:
            if isinstance(error, PartRefusedError):
                self._name(peer_id, Offence.BAD_ANSWER)
            elif isinstance(error, Exception) and not (is_own or self._future.done()):
                self._name(peer_id, Offence.NO_ANSWER)
            container.register_failed_reducer(peer_index)
            raise

    async def _own_answers(self) -> AsyncGenerator[torch.Tensor, None]:
        loop, sender_index = asyncio.get_running_loop(), self.sender_peer_ids.index(self.peer_id)
        for part_index, part in enumerate(self.parts_for_local_averaging):
            if not self.answers_are_averages:
                part = await loop.run_in_executor(None, self._through_codec, part, part_index)
            average = await self.tensor_part_reducer.accumulate_part(sender_index, part_index, part, self.weight)
            answer = await self._answer(average, part, part_index)
            yield await loop.run_in_executor(None, self._read, answer, part_index)

    def _answers(self, peer_id: PeerID, peer_index: int) -> AsyncGenerator[torch.Tensor, None]:
        streams = self._streams_by_reducer[peer_index]
        answers = [self._answers_of_stream(peer_id, peer_index, number) for number in streams.numbers]
        return in_turn(answers, streams.of_parts)

    async def _answers_of_stream(
        self, peer_id: PeerID, peer_index: int, number: int
    ) -> AsyncGenerator[torch.Tensor, None]:
        seconds = self.sender_timeout or SENDER_SECONDS
        parts = self._parts_of_stream(peer_index, number)
        all_sent = asyncio.Event()
        stream = await open_greeted(
            self._get_peer_stub(peer_id).rpc_aggregate_part,
            hello=_hello(self.group_id, number),
            messages=attach_event_on_finished(self._messages_of_stream(peer_index, number), all_sent),
            is_greeting=lambda message: message.code == averaging_pb2.ACCEPTED,
            seconds=seconds / OPENINGS_PER_TIMEOUT,
            attempts=2 * OPENINGS_PER_TIMEOUT,
        )
        if self.should_delay_results(self.peer_id):
            await all_sent.wait()
        async for answer in amap_in_executor(
            self._check_answer,
            aiter_with_timeout(first_messages(stream, len(parts), all_sent), self.reducer_timeout),
            as_aiter(*parts),
            max_prefetch=self.tensor_part_container.prefetch,
        ):
            yield answer

    def _check_answer(
        self, message: averaging_pb2.AveragingData, part_and_info: tuple[torch.Tensor, CompressionInfo]
    ) -> torch.Tensor:
        own_part, info = part_and_info
        if message.code != averaging_pb2.AVERAGED_PART:
            raise AllreduceException(f"a reducer answered {averaging_pb2.MessageCode.Name(message.code)}")
        answer = read_part(message.tensor_part, self.tensor_part_container.compression, info, own_part.shape)
        average = answer if self.answers_are_averages else own_part + answer
        typical = max(self._memory.typical_value, self.tensor_part_reducer.typical_value)
        limit = max(
            MAX_ANSWER_RATIO * _norm(own_part), MAX_ANSWER_RATIO_TO_OTHERS * typical * math.sqrt(own_part.numel())
        )
        if limit and (length := _norm(average)) > limit:
            raise PartRefusedError(Offence.BAD_ANSWER, f"an average of norm {length:.3g}; expected at most {limit:.3g}")
        return answer

    def _parts_of_stream(self, peer_index: int, number: int) -> tuple[tuple[torch.Tensor, CompressionInfo], ...]:
        parts = tuple(self.tensor_part_container._input_parts_by_peer[peer_index])
        if not parts:  # the round is over
            return ()
        return tuple(parts[index] for index in self._streams_by_reducer[peer_index].part_indices(number))

    async def _messages_of_stream(self, peer_index: int, number: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        container = self.tensor_part_container
        async for part in amap_in_executor(
            lambda part_and_info: container.compression.compress(*part_and_info),
            as_aiter(*self._parts_of_stream(peer_index, number)),
            max_prefetch=container.prefetch,
        ):
            self._count_bytes(len(part.buffer))
            await pass_bytes(self._upload_limit, len(part.buffer))
            yield averaging_pb2.AveragingData(
                code=averaging_pb2.PART_FOR_AVERAGING, group_id=self.group_id, tensor_part=part, weight=self.weight
            )

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
        number, open_streams = _stream_number_of(hello), self._open_streams[sender]
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
        if _stream_number_of(hello) not in self._streams.numbers:
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
                aenumerate(aiter_with_timeout(stream, self.sender_timeout)),
                max_prefetch=self.tensor_part_container.prefetch,
            ):
                part_index = part_indices[num_answered]
                average = await reducer.accumulate_part(sender_index, part_index, received.part, received.weight)
                answer = await self._answer(average, received.part, part_index)
                self._count_bytes(len(answer.buffer))
                num_answered += 1
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=answer)
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
        part = self._read(message.tensor_part, part_indices[number])
        if part.any():
            if message.weight == 0:
                self._name(sender, Offence.NO_WEIGHT)
            self._notice_replay(message.tensor_part.buffer, sender)
        return _Received(part=part, weight=message.weight)

    def _notice_replay(self, buffer: bytes, sender: PeerID) -> None:
        if not self._notices_replays:
            return
        digest = hashlib.blake2b(buffer, digest_size=16).digest()
        if digest in self._digests[sender] or digest in self._memory.earlier_digests.get(sender, ()):
            raise PartRefusedError(Offence.REPLAYED, "the same values as in an earlier part")
        self._digests[sender].add(digest)

    async def _answer(self, average: torch.Tensor, part: torch.Tensor, part_index: int) -> runtime_pb2.Tensor:
        loop = asyncio.get_running_loop()
        if not self.answers_are_averages:
            return await loop.run_in_executor(None, self._compress, average - part, part_index)
        if part_index not in self._averages:  # compressed once for all members
            self._averages[part_index] = loop.run_in_executor(None, self._compress, average, part_index)
        return await asyncio.shield(self._averages[part_index])

    def _through_codec(self, part: torch.Tensor, part_index: int) -> torch.Tensor:
        return self._read(self._compress(part, part_index), part_index)

    def _compress(self, values: torch.Tensor, part_index: int) -> runtime_pb2.Tensor:
        info = self._own_part_infos[part_index]
        return self.tensor_part_container.compression.compress(values, info, allow_inplace=False)

    def _read(self, message: runtime_pb2.Tensor, part_index: int) -> torch.Tensor:
        """Decode one of the parts that this peer reduces; raises PartRefusedError."""
        shape = self.tensor_part_reducer.part_shapes[part_index]
        return read_part(message, self.tensor_part_container.compression, self._own_part_infos[part_index], shape)

    async def _ban_sender(self, peer_id: PeerID) -> None:
        was_caught = any(peer == peer_id for peer, _ in self.offences)
        if not (was_caught or peer_id in self.banned_senders or self._future.done()):
            # A failed machine or link. What a caught offender lacks of the average is its own problem.
            self.lost_senders.add(peer_id)
            self._name(peer_id, Offence.SILENT)
        await super()._ban_sender(peer_id)

    def _name(self, peer_id: PeerID, offence: Offence) -> None:
        self.offences.add((peer_id, offence))


def _hello(group_id: bytes, number: int) -> averaging_pb2.AveragingData:
    """Return the first message of a stream; its number is in a hivemind field that is otherwise unused."""
    return averaging_pb2.AveragingData(code=averaging_pb2.REQUEST_JOIN, group_id=group_id, peer_id=bytes([number]))


def _stream_number_of(hello: averaging_pb2.AveragingData) -> int:
    """Return the stream that a hello names, or -1 for one that names none."""
    return hello.peer_id[0] if len(hello.peer_id) == 1 else -1


def _norm(part: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(part, dtype=torch.float64))
