"""The reducing end of a round: takes the senders' parts, none of which it trusts, and answers with signed averages."""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
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
from pipelines.core.averaging.round_state import PREFETCH, RoundState
from pipelines.core.averaging.sending_end import SendingEnd
from pipelines.core.averaging.wire.codec import read_part
from pipelines.core.averaging.wire.signed_parts import answer_statement, part_statement, seal

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


NumberedAnswer = tuple[int, averaging_pb2.AveragingData]
"""An answer to one part of a reducer's share, and the part's number."""


class ReducingEnd:
    """Aggregates this peer's share of the vector, and knows its senders; the other end is `SendingEnd`."""

    def __init__(self, state: RoundState, recorded_weights: Mapping[PeerID, float], memory: RoundMemory) -> None:
        """`recorded_weights`: the most weight that peers' signed records make plausible, as far as it is known."""
        self._round, self._senders, self._memory = state, state.senders, memory
        self._parts = tuple(part for part, _ in state.parts[state.peer_id])
        self._infos = tuple(info for _, info in state.parts[state.peer_id])
        self.reducer = RobustPartReducer(
            tuple(part.shape for part in self._parts),
            self._senders,
            rule=state.terms.rule,
            recorded_weights={peer: recorded_weights[peer] for peer in self._senders if peer in recorded_weights},
        )
        self._streams = state.streams[state.peer_id]
        self._averages: dict[int, asyncio.Future[averaging_pb2.AveragingData]] = {}
        self._asked: asyncio.Queue[int] = asyncio.Queue()  # parts of which an answer is made
        self._digests: dict[PeerID, set[bytes]] = {peer: set() for peer in self._senders}
        self._open_streams: dict[PeerID, set[int]] = {peer: set() for peer in self._senders}
        self._not_begun, self._all_begun = state.terms.senders - {state.peer_id}, asyncio.Event()
        self.banned_senders, self.lost_senders = set[PeerID](), set[PeerID]()
        """Senders that this peer does without, and those among them whose machine or link has failed."""

    def begin_stream(self, sender: PeerID, number: int) -> bool:
        """Note that the first part of a stream is here; False if the sender may not send it."""
        streams = self._open_streams[sender]
        if number in streams:
            self._round.name(sender, Misbehaviour.REPLAYED)
        if number in streams or sender in self.banned_senders:
            return False
        streams.add(number)
        if len(streams) == len(self._streams.numbers):
            self._note_begun(sender)
        return True

    async def end_unbegun_senders(self) -> None:
        """Wait until the streams of all senders have begun, and do without those whose have not in time."""
        if not self._parts:  # nobody opens any
            return
        try:
            await asyncio.wait_for(self._all_begun.wait(), self._round.sender_timeout)
        except TimeoutError:
            for sender in self._not_begun:
                self.ban(sender)

    def end_unbegun(self, peer: PeerID) -> None:
        """Do without a sender to which no stream leads, unless its own have begun: they will say when they end."""
        if peer in self._open_streams and not self._open_streams[peer]:
            self.ban(peer)

    def ban(self, sender: PeerID) -> None:
        """Do without a sender, for whom others wait."""
        if sender in self.banned_senders:
            return
        if not (any(peer == sender for peer, _ in self._round.offences) or self._round.over.is_set()):
            # A failed machine or link. What a caught offender lacks of the average is its own problem.
            self.lost_senders.add(sender)
            self._round.name(sender, Misbehaviour.SILENT)
        self.banned_senders.add(sender)
        self.reducer.drop(sender)
        self._note_begun(sender)  # nobody waits for the streams that it has not opened yet

    def _note_begun(self, sender: PeerID) -> None:
        self._not_begun -= {sender}
        if not self._not_begun:
            self._all_begun.set()

    def end_round(self) -> None:
        """Name who stood out, and remember what later rounds are judged by."""
        for sender in self.reducer.far_off_senders:
            self._round.name(sender, Misbehaviour.FAR_OFF)
        for sender in self.reducer.excess_weight_senders:
            self._round.name(sender, Misbehaviour.EXCESS_WEIGHT)
        self._memory.earlier_digests = {peer: frozenset(digests) for peer, digests in self._digests.items()}
        self._memory.typical_value = self.reducer.typical_value or self._memory.typical_value

    @property
    def late_senders(self) -> set[PeerID]:
        """Peers that the others' parts waited for during most of the round, and still do; none if it is all of them.

        Who only began late does not count, and once everything is averaged nobody does: then this peer waits for
        answers of others, who may wait for somebody else.
        """
        shares = self.reducer.shares_waited
        late = {sender for sender in self.reducer.awaited if shares[sender] >= LATE_SHARE}
        return late if len(late) < len(self._senders) else set()

    @property
    def share_reduced(self) -> float:
        """Share of the vector that this peer reduces, in [0, 1]."""
        return sum(part.numel() for part in self._parts) / max(1, self._round.total_size)

    @property
    def typical_value(self) -> float:
        """Root mean square of the values that the median peer sends here; 0: nothing is known yet."""
        return max(self._memory.typical_value, self.reducer.typical_value)

    async def answers_to_stream(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender: PeerID, number: int
    ) -> AsyncGenerator[averaging_pb2.AveragingData]:
        """Aggregate the parts of a sender's stream and answer in the run's own codec."""
        num_answered, part_indices = 0, self._streams.part_indices(number)
        try:
            async for received in amap_in_executor(
                partial(self._check_input, sender, part_indices),
                aenumerate(self._round.arrivals.counted(sender, stream)),
                max_prefetch=PREFETCH,
            ):
                part_index = part_indices[num_answered]
                average = await self.reducer.accumulate_part(sender, part_index, received.part, received.weight)
                answer = await self._answer(average, part_index)
                self._round.count_bytes(len(answer.tensor_part.buffer))
                num_answered += 1
                yield answer
        except (PartRefusedError, BannedException) as error:
            if isinstance(error, PartRefusedError):
                self._round.name(sender, error.offence)
            self.ban(sender)  # at once: the others are waiting for this sender's part
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        finally:
            if num_answered != len(part_indices):
                self.ban(sender)

    async def own_answers(self, sending: SendingEnd) -> AsyncGenerator[NumberedAnswer, None]:
        """Aggregate this peer's own parts with the others', and yield the answers."""
        state = self._round
        parts = amap_in_executor(
            partial(self._own_input, sending),
            as_aiter(*enumerate(self._parts)),
            max_prefetch=PREFETCH,
        )
        async with aclosing(parts):
            async for part_index, part in parts:
                average = await self.reducer.accumulate_part(state.peer_id, part_index, part, state.weight)
                yield part_index, await self._readable(part_index, await self._answer(average, part_index))

    async def answers_to_others(self) -> AsyncGenerator[NumberedAnswer, None]:
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
                yield part_index, await self._readable(part_index, await asyncio.shield(self._averages[part_index]))
        finally:
            ended.cancel()

    async def _readable(self, part_index: int, answer: averaging_pb2.AveragingData) -> averaging_pb2.AveragingData:
        """Return what this peer answers, once it has read it as the others do; raises PartRefusedError."""
        await asyncio.get_running_loop().run_in_executor(None, self._read, answer.tensor_part, part_index)
        return answer

    def _own_input(self, sending: SendingEnd, numbered_part: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor]:
        """Take a part of this peer's own share through the codec, as others' parts come; runs in a thread."""
        part_index, part = numbered_part
        own = self._round.peer_id
        _, message, digest = sending.signed_part(own, part_index, (part, self._infos[part_index]))
        self._round.inputs.keep(part_index, own, message, digest)
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
        state.inputs.keep(part_index, sender, message, digest)
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
        state = self._round
        contributions = state.inputs.use(part_index, self.reducer.weights_used[part_index])
        part = state.terms.compression.compress(average, self._infos[part_index], allow_inplace=False)
        statement = answer_statement(state.group_id, state.peer_id, part_index, part.buffer, contributions)
        sealed = seal(state.signatures.sign(statement), contributions)
        return averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=part, peer_id=sealed)

    def _read(self, message: runtime_pb2.Tensor, part_index: int) -> torch.Tensor:
        """Decode one of the parts that this peer reduces; raises PartRefusedError."""
        shape = self.reducer.part_shapes[part_index]
        return read_part(message, self._round.terms.compression, self._infos[part_index], shape)
