"""The reducing end of a round: takes the senders' parts, none of which it trusts, and answers with signed averages."""

import asyncio
import hashlib
import math
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import torch
from hivemind.averaging.partition import BannedException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import aenumerate, amap_in_executor, as_aiter

from pipelines.core.averaging.reduce.reducer import RobustPartReducer
from pipelines.core.averaging.reduce.suspects import Misbehaviour, PartRefusedError
from pipelines.core.averaging.round_state import RoundState
from pipelines.core.averaging.sending_end import SendingEnd
from pipelines.core.averaging.wire.codec import read_part
from pipelines.core.averaging.wire.signed_parts import RoundInputs, answer_statement, part_statement, seal

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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A reducer's answer to one part of its share."""

    part_index: int
    message: averaging_pb2.AveragingData
    values: torch.Tensor


class ReducingEnd:
    """Aggregates this peer's share of the vector; the other end is `SendingEnd`."""

    def __init__(
        self,
        state: RoundState,
        parts: Sequence[torch.Tensor],
        recorded_weights: Mapping[PeerID, float],
        memory: RoundMemory,
        ban: Callable[[PeerID], Awaitable[None]],
    ) -> None:
        """`parts`: of this peer's own vector, in its share; `ban`, a method, does without a sender, for whom
        others wait.

        `recorded_weights`: the most weight that peers' signed records make plausible, as far as it is known.
        """
        self._round, self._parts, self._memory = state, parts, memory
        self._ban = weakref.WeakMethod(ban)  # else what a round holds would stay until the next collection of garbage
        self.reducer = RobustPartReducer(
            tuple(part.shape for part in parts),
            len(state.senders),
            rule=state.terms.rule,
            recorded_weights={
                index: recorded_weights[peer] for index, peer in enumerate(state.senders) if peer in recorded_weights
            },
        )
        self.inputs = RoundInputs(state.members)
        self._streams = state.streams[state.members.index(state.peer_id)]
        self._averages: dict[int, asyncio.Future[averaging_pb2.AveragingData]] = {}
        self._asked: asyncio.Queue[int] = asyncio.Queue()  # parts of which an answer is made
        self._digests: dict[PeerID, set[bytes]] = {peer: set() for peer in state.senders}

    def end_round(self) -> None:
        """Name who stood out, and remember what later rounds are judged by."""
        for index in self.reducer.far_off_senders:
            self._round.name(self._round.senders[index], Misbehaviour.FAR_OFF)
        for index in self.reducer.excess_weight_senders:
            self._round.name(self._round.senders[index], Misbehaviour.EXCESS_WEIGHT)
        self._memory.earlier_digests = {peer: frozenset(digests) for peer, digests in self._digests.items()}
        self._memory.typical_value = self.reducer.typical_value or self._memory.typical_value

    @property
    def late_senders(self) -> set[PeerID]:
        """Peers that the others' parts waited for during most of the round, and still do; none if it is all of them.

        Who only began late does not count, and once everything is averaged nobody does: then this peer waits for
        answers of others, who may wait for somebody else.
        """
        senders, shares = self._round.senders, self.reducer.shares_waited
        late = {senders[index] for index in self.reducer.awaited if shares[index] >= LATE_SHARE}
        return late if len(late) < len(senders) else set()

    @property
    def share_reduced(self) -> float:
        """Share of the vector that this peer reduces, in [0, 1]."""
        return sum(part.numel() for part in self._parts) / max(1, self._round.container.total_size)

    async def answers_to_stream(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int, number: int
    ) -> AsyncGenerator[averaging_pb2.AveragingData]:
        """Aggregate the parts of a sender's stream and answer in the run's own codec."""
        sender, num_answered = self._round.senders[sender_index], 0
        part_indices = self._streams.part_indices(number)
        try:
            async for received in amap_in_executor(
                partial(self._check_input, sender, part_indices),
                aenumerate(self._round.arrivals.counted(sender, stream)),
                max_prefetch=self._round.container.prefetch,
            ):
                part_index = part_indices[num_answered]
                average = await self.reducer.accumulate_part(sender_index, part_index, received.part, received.weight)
                answer = await self._answer(average, part_index)
                self._round.count_bytes(len(answer.tensor_part.buffer))
                num_answered += 1
                yield answer
        except (PartRefusedError, BannedException) as error:
            if isinstance(error, PartRefusedError):
                self._round.name(sender, error.offence)
            await self._do_without(sender)  # at once: the others are waiting for this sender's part
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        finally:
            if num_answered != len(part_indices):
                await self._do_without(sender)

    async def _do_without(self, sender: PeerID) -> None:
        if (ban := self._ban()) is not None:
            await ban(sender)

    async def own_answers(self, sending: SendingEnd) -> AsyncGenerator[Answer, None]:
        """Aggregate this peer's own parts with the others', and yield the answers."""
        sender_index = self._round.senders.index(self._round.peer_id)
        parts = amap_in_executor(
            partial(self._own_input, sending),
            as_aiter(*enumerate(self._parts)),
            max_prefetch=self._round.container.prefetch,
        )
        async with aclosing(parts):
            async for part_index, part in parts:
                average = await self.reducer.accumulate_part(sender_index, part_index, part, self._round.weight)
                yield await self._read_answer(part_index, await self._answer(average, part_index))

    async def answers_to_others(self) -> AsyncGenerator[Answer, None]:
        """Yield a helper's answers as they are made for the others; it has no parts that would wait for them."""
        ended = asyncio.create_task(self.reducer.finished.wait())
        try:
            for _ in self._parts:
                asked = asyncio.create_task(self._asked.get())
                await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done() and self._asked.empty():  # all senders are gone
                    asked.cancel()
                    return
                part_index = await asked
                yield await self._read_answer(part_index, await asyncio.shield(self._averages[part_index]))
        finally:
            ended.cancel()

    async def _read_answer(self, part_index: int, message: averaging_pb2.AveragingData) -> Answer:
        """Read what this peer answers, as the others do: it too takes the average as it came out of the codec."""
        loop = asyncio.get_running_loop()
        values = await loop.run_in_executor(None, self._read, message.tensor_part, part_index)
        return Answer(part_index=part_index, message=message, values=values)

    def _own_input(self, sending: SendingEnd, numbered_part: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor]:
        """Take a part of this peer's own share through the codec, as others' parts come; runs in a thread."""
        part_index, part = numbered_part
        own = self._round.peer_id
        _, message, digest = sending.signed_part(own, part_index, (part, self._round.own_infos[part_index]))
        self.inputs.keep(part_index, own, message, digest)
        return part_index, self._read(message.tensor_part, part_index)

    def _check_input(
        self, sender: PeerID, part_indices: Sequence[int], numbered_message: tuple[int, averaging_pb2.AveragingData]
    ) -> _Received:
        """Return a sender's part and weight; runs in a thread. Raises PartRefusedError."""
        number, message = numbered_message
        if number >= len(part_indices):
            raise PartRefusedError(Misbehaviour.REPLAYED, "more parts than the vector has")
        if not (math.isfinite(message.weight) and message.weight >= 0):
            raise PartRefusedError(Misbehaviour.BAD_WEIGHT, f"weight {message.weight}")
        state, part_index = self._round, part_indices[number]
        digest = hashlib.sha256(message.tensor_part.buffer).digest()
        statement = part_statement(state.group_id, sender, state.peer_id, part_index, message.weight, digest)
        if not state.signatures.verify(sender, statement, message.peer_id):
            raise PartRefusedError(Misbehaviour.UNSIGNED, "another signature or none")
        part = self._read(message.tensor_part, part_index)
        if part.any():
            if message.weight == 0:
                state.name(sender, Misbehaviour.NO_WEIGHT)
            self._notice_replay(digest, sender)
        self.inputs.keep(part_index, sender, message, digest)
        return _Received(part=part, weight=message.weight)

    def _notice_replay(self, digest: bytes, sender: PeerID) -> None:
        if digest in self._digests[sender] or digest in self._memory.earlier_digests.get(sender, ()):
            raise PartRefusedError(Misbehaviour.REPLAYED, "the same values as in an earlier part")
        self._digests[sender].add(digest)

    async def _answer(self, average: torch.Tensor, part_index: int) -> averaging_pb2.AveragingData:
        if part_index not in self._averages:  # compressed and signed once for all members
            loop = asyncio.get_running_loop()
            self._asked.put_nowait(part_index)
            self._averages[part_index] = loop.run_in_executor(None, self._signed, average, part_index)
        return await asyncio.shield(self._averages[part_index])

    def _signed(self, average: torch.Tensor, part_index: int) -> averaging_pb2.AveragingData:
        state, weights = self._round, self.reducer.weights_used[part_index]
        contributions = self.inputs.use(part_index, {state.senders[i]: weight for i, weight in weights.items()})
        part = state.terms.compression.compress(average, state.own_infos[part_index], allow_inplace=False)
        statement = answer_statement(state.group_id, state.peer_id, part_index, part.buffer, contributions)
        sealed = seal(state.signatures.sign(statement), contributions)
        return averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=part, peer_id=sealed)

    def _read(self, message: runtime_pb2.Tensor, part_index: int) -> torch.Tensor:
        """Decode one of the parts that this peer reduces; raises PartRefusedError."""
        shape = self.reducer.part_shapes[part_index]
        return read_part(message, self._round.terms.compression, self._round.own_infos[part_index], shape)
