"""One all-reduce among a group of peers, in which nobody is trusted: see `TrustedAllReduceRunner`."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial

import torch
from hivemind.averaging.allreduce import AllReduceRunner, AveragingMode
from hivemind.averaging.partition import AllreduceException
from hivemind.compression import CompressionInfo
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import (
    achain,
    aiter_with_timeout,
    amap_in_executor,
    anext,
    as_aiter,
    attach_event_on_finished,
)

from pipelines.core.averaging.reduce.reducer import RobustPartReducer
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour, PartRefusedError
from pipelines.core.averaging.reducing_end import Answer, ReducingEnd, RoundMemory
from pipelines.core.averaging.round_state import RoundState, Signatures
from pipelines.core.averaging.sending_end import SendingEnd, pass_at_once, stream_hello, stream_number_of
from pipelines.core.averaging.wire.codec import read_part
from pipelines.core.averaging.wire.signed_parts import (
    RoundAnswers,
    answer_statement,
    answers_request,
    read_seal,
)
from pipelines.core.averaging.wire.streams import ParallelStreams, first_messages, held_back, in_turn, open_greeted
from pipelines.core.equal_arithmetic import norm

logger = logging.getLogger(__name__)

MAX_ANSWER_RATIO = 10.0
"""An answer is impossible if its norm exceeds both this multiple of this peer's own part and ..."""

MAX_ANSWER_RATIO_TO_OTHERS = 100.0
"""... this multiple of what peers typically sent here for other parts; layers differ, so the limit is wider."""

SENDER_SECONDS = 15.0
"""How long to wait for a sender if the averager was given no time-out."""

SECONDS_FOR_AN_ANSWER = 1.0
"""How long a member that is asked for a reducer's answers may be silent before the next one is asked."""

OPENINGS_PER_TIMEOUT = 3
"""Attempts to open a stream before its reader would drop the sender. A reducer that is silent for as long as one of
them takes is late."""


class TrustedAllReduceRunner(AllReduceRunner):
    """An all-reduce that checks its inputs, aggregates by the run's rule, and reports who misbehaved.

    Senders are not trusted: parts and weights are checked and bounded before they are aggregated, and a sender of
    anything impossible is excluded from the round at once. Reducers are hardly trusted: an answer that is not finite or
    too long is not used, and `checks` can ask for the inputs later. A stream that fails to open is retried.

    Senders sign their parts, and reducers their answers with what they made them of. What one of them does not deliver
    is taken from the other members. Members thus agree on which parts have an average. In the last attempt at a round a
    part without one counts as zero for all.

    In hivemind every member receives its own `average - own part` and adds it to what it has: members then differ by
    rounding, and in 8 bits by 3e-3 to 9e-3 of a tensor's norm after four epochs (measured, three peers). Here all
    members, including the reducer, take the average as it came out of the codec, so that whatever they had before, they
    agree in every bit that they have received. The reducer's own part goes through the codec too, so that others can
    make the average again.

    A member that does not send listens: it takes all answers from the others. It helps if it reduces as well.
    """

    tensor_part_reducer: RobustPartReducer
    """In place of hivemind's own."""

    sending_type: Callable[..., SendingEnd] = SendingEnd
    reducing_type: Callable[..., ReducingEnd] = ReducingEnd

    def __init__(
        self,
        *,
        rule: AggregationRule,
        recorded_weights: Mapping[PeerID, float] | None,
        memory: RoundMemory,
        count_bytes: Callable[[int], None],
        signatures: Signatures,
        is_last_attempt: bool,
        pass_bytes: Callable[[int], Awaitable[None]] = pass_at_once,
        **kwargs: object,
    ) -> None:
        """Prepare one round; `is_last_attempt`: a part that nobody has an average of counts as zero.

        `recorded_weights`: the most weight that each peer's signed records make plausible; None if none are known.
        `pass_bytes` waits until so many bytes may be sent.
        """
        super().__init__(**kwargs)
        self.tensor_part_container.return_deltas = False  # a part that fails keeps its local values
        self._memory, self._is_last_attempt = memory, is_last_attempt
        self._round = RoundState.of(self, rule, signatures, count_bytes)
        self._sending = self.sending_type(self._round, pass_bytes)
        self._reducing = self.reducing_type(
            self._round, self.parts_for_local_averaging, recorded_weights or {}, memory, self._ban_sender
        )
        self.tensor_part_reducer.finished.set()  # hivemind's own, which would report that nothing ever arrived
        self.tensor_part_reducer = self._reducing.reducer
        self.terms, self.sent, self.inputs = self._round.terms, self._sending.sent, self._reducing.inputs
        self.offences, self.lost_senders = self._round.offences, set[PeerID]()
        self._open_streams: dict[PeerID, set[int]] = {peer: set() for peer in self.sender_peer_ids}
        self._num_registered, self._num_taken = [0] * self.group_size, [0] * self.group_size  # by reducer
        self._num_zeros = 0
        self.answers = RoundAnswers(self.ordered_peer_ids)
        # Views of the averager's tensors; the container drops its own when the round is over.
        self._parts_by_reducer = tuple(map(tuple, self.tensor_part_container._input_parts_by_peer))

    @property
    def share_averaged(self) -> float:
        """Share of the vector whose average has arrived, in [0, 1]."""
        container = self.tensor_part_container
        return 1.0 - (container.failed_size + self._num_zeros) / max(1, container.total_size)

    @property
    def _opening_seconds(self) -> float:
        return (self.sender_timeout or SENDER_SECONDS) / OPENINGS_PER_TIMEOUT

    @property
    def bad_reducers(self) -> set[PeerID]:
        """Peers whose answers were impossible."""
        return {peer for peer, offence in self.offences if offence == Misbehaviour.BAD_ANSWER}

    @property
    def late_senders(self) -> set[PeerID]:
        """See `Round`."""
        return self._reducing.late_senders

    @property
    def share_reduced(self) -> float:
        """See `Round`."""
        return self._reducing.share_reduced

    def delivered_mbit(self) -> dict[bytes, float]:
        """See `Round`. A peer from which nothing has come, or that was lost, is left out."""
        absent = self.lost_senders | self.banned_senders
        rates = self._round.arrivals.rates_until_last()
        return {peer.to_bytes(): rate for peer, rate in rates.items() if peer not in absent}

    def late_mbit(self) -> dict[PeerID, float]:
        """See `Round`."""
        return self._round.arrivals.rates_so_far(self.late_senders)

    def end_round(self) -> set[tuple[PeerID, Misbehaviour]]:
        """See `Round`. Call it when the round has succeeded: after a failed one honest peers send the same again."""
        self._reducing.end_round()
        return self.offences

    async def drop_late_senders(self) -> None:
        """See `Round`. If it is most of the others, this peer is cut off or slow, and its answers are all they have."""
        late = self.late_senders - {self.peer_id}
        if 2 * len(late) < len(self.sender_peer_ids):
            for peer in late:
                await self._ban_sender(peer)

    def name_late_senders(self) -> None:
        """See `Round`."""
        for peer in self.late_senders:
            self._round.name(peer, Misbehaviour.SILENT)

    def should_delay_results(self, peer_id: PeerID) -> bool:
        """Tell whether a peer reads its answers only when it has sent everything: clients do.

        hivemind also has those do it that reduce nothing: a slow link then carries its two directions one after the
        other.
        """
        return self.modes[self.ordered_peer_ids.index(peer_id)] == AveragingMode.CLIENT

    async def collect(self) -> None:
        """Take all averages; see `Round`."""
        async with aclosing(self.run()) as averages:
            async for _ in averages:  # checked and kept as answers
                pass

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the averages into the averager's tensors, part by part; see `Round`. It needs no memory for a copy."""
        for reducer, parts in zip(self.ordered_peer_ids, self._parts_by_reducer, strict=True):
            answers = self.answers.held(reducer)
            for index, (part, info) in enumerate(parts):
                if (answer := answers.get(index)) is not None:
                    compression = self.tensor_part_container.compression
                    part.copy_(read_part(answer.tensor_part, compression, info, part.shape))
                elif self._is_last_attempt:
                    part.zero_()

    async def run(self) -> AsyncGenerator[torch.Tensor, None]:
        """Yield the averages, tensor by tensor; see `AllReduceRunner.run`."""
        averages = super().run() if self.peer_id in self.sender_peer_ids else self._listen()
        try:
            async with aclosing(averages):
                async for average in averages:
                    yield average
        finally:
            if self._future.done() and not self._future.cancelled():
                self._future.exception()  # nobody else looks at it, and asyncio would print it

    async def _listen(self) -> AsyncGenerator[torch.Tensor, None]:
        """Take all answers from those that reduce and from those that they have answered; send no vector."""
        container = self.tensor_part_container
        counts = zip(self.ordered_peer_ids, container.num_parts_by_peer, strict=True)
        tasks = [asyncio.create_task(self._listen_to(peer)) for peer, number in counts if number]
        if self.parts_for_local_averaging:
            tasks.append(asyncio.create_task(self._handle_missing_senders()))
        try:
            async for average in container.iterate_output_tensors():
                yield average
            self.finalize()
        except BaseException as error:
            self.finalize(exception=error)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen_to(self, reducer: PeerID) -> None:
        peer_index = self.ordered_peer_ids.index(reducer)
        if reducer == self.peer_id:
            await self._communicate_with_peer(reducer)
            return
        await self._take_from_others(reducer, asks_reducer=True)
        self.answers.end(reducer)
        if self._missing_parts(peer_index):
            self._round.name(reducer, Misbehaviour.NO_ANSWER)
            self._give_up_missing_parts(peer_index)

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        """Send a reducer its parts of the local vector and register its answers; the reducer may be this peer."""
        peer_index, is_own = self.ordered_peer_ids.index(peer_id), peer_id == self.peer_id
        own_answers = asyncio.create_task(self._take_from_reducer(peer_id))
        try:
            if not is_own:
                await self._take_what_is_late(peer_id, own_answers)
            await own_answers
            if missing := self._missing_parts(peer_index):
                raise AllreduceException(f"{peer_id} left {len(missing)} parts of the vector without an answer")
        except BaseException as error:
            own_answers.cancel()
            await asyncio.wait([own_answers])
            self.answers.end(peer_id)
            if isinstance(error, PartRefusedError):
                self._round.name(peer_id, Misbehaviour.BAD_ANSWER)
            elif isinstance(error, Exception) and not (is_own or self._future.done()):
                await self._end_unbegun_sender(peer_id)
                self._round.name(peer_id, Misbehaviour.NO_ANSWER)
                await self._take_from_others(peer_id)
            self._give_up_missing_parts(peer_index)
            raise
        finally:
            self.answers.end(peer_id)

    async def _take_from_reducer(self, reducer: PeerID) -> None:
        is_own = reducer == self.peer_id
        reducing, sends = self._reducing, self.peer_id in self.sender_peer_ids
        own_answers = partial(reducing.own_answers, self._sending) if sends else reducing.answers_to_others
        async with aclosing(own_answers() if is_own else self._answers(reducer)) as answers:
            async for answer in answers:
                self._register(reducer, answer)

    async def _take_what_is_late(self, reducer: PeerID, own_answers: asyncio.Task[None]) -> None:
        """While a reducer is silent, take from the others what it has given to them.

        Raises:
            AllreduceException: the others had everything.
        """
        peer_index, former = self.ordered_peer_ids.index(reducer), -1
        while not own_answers.done():
            missing = self._missing_parts(peer_index)
            if missing and missing.start == former and await self._take_from_others(reducer, asks_once=True):
                self._round.name(reducer, Misbehaviour.NO_ANSWER)
                if not self._missing_parts(peer_index):
                    raise AllreduceException(f"{reducer} was silent; the others had its answers")
            former = missing.start
            await asyncio.wait([own_answers], timeout=self._opening_seconds)

    def _missing_parts(self, peer_index: int) -> range:
        return range(self._num_registered[peer_index], self.tensor_part_container.num_parts_by_peer[peer_index])

    def _register(self, reducer: PeerID, answer: Answer) -> bool:
        """Use an answer and keep it for the other members; False if it has come from somebody else already."""
        peer_index = self.ordered_peer_ids.index(reducer)
        if answer.part_index != self._missing_parts(peer_index).start:
            return False
        self.answers.keep(reducer, answer.part_index, answer.message)
        self._use(peer_index, answer.values)
        return True

    def _use(self, peer_index: int, values: torch.Tensor) -> None:
        self.tensor_part_container.register_processed_part(peer_index, self._num_registered[peer_index], values)
        self._num_registered[peer_index] += 1

    async def _take_from_others(self, reducer: PeerID, *, asks_once: bool = False, asks_reducer: bool = False) -> bool:
        """Ask the other members in turn for the answers that a reducer has not given to this peer; True if they help.

        It ends when nothing is missing, nobody can have it any more, or nothing comes for long; or all were asked once.
        """
        peer_index, seconds = self.ordered_peer_ids.index(reducer), self.reducer_timeout or 2 * SENDER_SECONDS
        # Clients answer no calls, and helpers have no answers.
        modes = zip(self.ordered_peer_ids, self.modes, strict=True)
        members = deque(m for m, mode in modes if mode == AveragingMode.NODE and m not in (reducer, self.peer_id))
        if asks_reducer:
            members.appendleft(reducer)
        # Answers that are still on their way when this peer gives up are not given again; who listens to all of them,
        # over links that are full, has to wait for as long as the parts take.
        patience = max(SECONDS_FOR_AN_ANSWER, 2 * self._opening_seconds if asks_reducer else 0.0)
        num_requests, num_taken = len(members) if asks_once else math.inf, self._num_taken[peer_index]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds) as limit:
                while members and num_requests and self._missing_parts(peer_index):
                    member, num_requests = members.popleft(), num_requests - 1
                    try:
                        await self._take_from(member, reducer, patience, partial(_extend, limit, seconds))
                    except TimeoutError:  # it is waiting for the reducer, too
                        members.append(member)
                    except Exception as error:  # peers fail in many ways; another one may have it
                        logger.debug("Peer %s did not pass answers on: %r", member, error)
        return self._num_taken[peer_index] > num_taken

    async def _take_from(self, member: PeerID, reducer: PeerID, patience: float, on_part: Callable[[], None]) -> None:
        """Take what a member has of a reducer's answers, with so many seconds of silence before each.

        Raises TimeoutError if it may get more of them.
        """
        peer_index, loop = self.ordered_peer_ids.index(reducer), asyncio.get_running_loop()
        parts = tuple(self.tensor_part_container._input_parts_by_peer[peer_index])
        missing = self._missing_parts(peer_index)
        async with asyncio.timeout(self._opening_seconds):
            stream = await self._get_peer_stub(member).rpc_take_answers(
                answers_request(self.group_id, reducer, missing)
            )
        async with aclosing(stream):
            messages = aiter_with_timeout(stream, patience)
            for index in missing:
                message = await anext(messages)
                if message.code != averaging_pb2.AVERAGED_PART:  # it gets no more of them itself
                    return
                check = partial(self._check_answer, reducer, message, index, parts[index])
                self.sent.pop((reducer, index), None)  # it may not have come there
                self._num_taken[peer_index] += self._register(reducer, await loop.run_in_executor(None, check))
                on_part()

    def _give_up_missing_parts(self, peer_index: int) -> None:
        """Use local values for parts without an answer, to be averaged in the next attempt; in the last one, zeros."""
        container = self.tensor_part_container
        if container.finished.is_set():  # the round is over
            return
        if self._is_last_attempt:
            for part_index in self._missing_parts(peer_index):
                part, _ = container._input_parts_by_peer[peer_index][part_index]
                self._use(peer_index, torch.zeros_like(part))
                self._num_zeros += part.numel()
        container.register_failed_reducer(peer_index)

    def _answers(self, peer_id: PeerID) -> AsyncGenerator[Answer, None]:
        peer_index = self.ordered_peer_ids.index(peer_id)
        streams = self._round.streams[peer_index]
        answers = [self._answers_of_stream(peer_id, peer_index, number) for number in streams.numbers]
        return in_turn(answers, streams.of_parts)

    async def _answers_of_stream(self, peer_id: PeerID, peer_index: int, number: int) -> AsyncGenerator[Answer, None]:
        parts = self._round.parts_of_stream(peer_index, number)
        indices = self._round.streams[peer_index].part_indices(number)[: len(parts)]
        all_sent = asyncio.Event()
        stream = await open_greeted(
            self._get_peer_stub(peer_id).rpc_aggregate_part,
            hello=stream_hello(self.group_id, number),
            messages=attach_event_on_finished(self._sending.messages_of_stream(peer_index, number), all_sent),
            is_greeting=lambda message: message.code == averaging_pb2.ACCEPTED,
            seconds=self._opening_seconds,
            attempts=2 * OPENINGS_PER_TIMEOUT,
        )
        if self.should_delay_results(self.peer_id):
            await all_sent.wait()
        async for answer in amap_in_executor(
            partial(self._check_answer, peer_id),
            self._round.arrivals.counted(
                peer_id, aiter_with_timeout(first_messages(stream, len(parts), all_sent), self.reducer_timeout)
            ),
            as_aiter(*indices),
            as_aiter(*parts),
            max_prefetch=self.tensor_part_container.prefetch,
        ):
            yield answer

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
                self._round.name(sender, Misbehaviour.REPLAYED)
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        open_streams.add(number)
        if len(open_streams) == len(self._own_streams.numbers):
            self._note_begun(sender)
        all_received = asyncio.Event()
        parts = attach_event_on_finished(achain(as_aiter(first), stream), all_received)
        answers = self._reducing.answers_to_stream(
            aiter_with_timeout(parts, self.sender_timeout), self.sender_peer_ids.index(sender), number
        )
        if self.should_delay_results(sender):
            answers = held_back(answers, all_received)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        except Exception:
            yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
            raise

    @property
    def _own_streams(self) -> ParallelStreams:
        return self._round.streams[self.ordered_peer_ids.index(self.peer_id)]

    def _refusal(self, hello: averaging_pb2.AveragingData, context: P2PContext) -> averaging_pb2.AveragingData | None:
        if context.remote_id not in self.sender_peer_ids:
            if context.remote_id in self.ordered_peer_ids:
                self._round.name(context.remote_id, Misbehaviour.NOT_A_SENDER)
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        if stream_number_of(hello) not in self._own_streams.numbers:
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        return self._check_reasons_to_reject(hello, context)

    async def _end_unbegun_sender(self, peer_id: PeerID) -> None:
        """Do without a sender to which no stream leads, unless its own have begun: they will say when they end."""
        if peer_id in self._open_streams and not self._open_streams[peer_id]:
            await self._ban_sender(peer_id)

    async def _ban_sender(self, peer_id: PeerID) -> None:
        was_caught = any(peer == peer_id for peer, _ in self.offences)
        if not (was_caught or peer_id in self.banned_senders or self._future.done()):
            # A failed machine or link. What a caught offender lacks of the average is its own problem.
            self.lost_senders.add(peer_id)
            self._round.name(peer_id, Misbehaviour.SILENT)
        await super()._ban_sender(peer_id)
        self._note_begun(peer_id)  # nobody waits for the streams that it has not opened yet

    def _note_begun(self, peer_id: PeerID) -> None:
        self.active_senders.add(peer_id)
        if len(self.active_senders) == len(self.sender_peer_ids):
            self.all_senders_started.set()

    def _check_answer(
        self,
        reducer: PeerID,
        message: averaging_pb2.AveragingData,
        part_index: int,
        part_and_info: tuple[torch.Tensor, CompressionInfo],
    ) -> Answer:
        """Return a reducer's answer to one part of its share; runs in a thread. Raises PartRefusedError."""
        own_part, info = part_and_info
        if message.code != averaging_pb2.AVERAGED_PART:
            raise AllreduceException(f"a reducer answered {averaging_pb2.MessageCode.Name(message.code)}")
        self._check_seal(reducer, message, part_index)
        answer = read_part(message.tensor_part, self.tensor_part_container.compression, info, own_part.shape)
        typical = max(self._memory.typical_value, self.tensor_part_reducer.typical_value)
        limit = max(
            MAX_ANSWER_RATIO * norm(own_part), MAX_ANSWER_RATIO_TO_OTHERS * typical * math.sqrt(own_part.numel())
        )
        if limit and (length := norm(answer)) > limit:
            raise PartRefusedError(
                Misbehaviour.BAD_ANSWER, f"an average of norm {length:.3g}; expected at most {limit:.3g}"
            )
        return Answer(part_index=part_index, message=message, values=answer)

    def _check_seal(self, reducer: PeerID, message: averaging_pb2.AveragingData, part_index: int) -> None:
        """Check that a reducer has signed its answer, and that it names senders of this round."""
        try:
            signature, contributions = read_seal(message.peer_id)
        except ValueError as error:
            raise AllreduceException(f"{reducer} has not signed its answer") from error
        statement = answer_statement(self.group_id, reducer, part_index, message.tensor_part.buffer, contributions)
        are_senders = self.terms.senders.issuperset(contribution.sender for contribution in contributions)
        if not (are_senders and self._round.signatures.verify(reducer, statement, signature)):
            raise AllreduceException(f"{reducer} has not signed its answer")


def _extend(limit: asyncio.Timeout, seconds: float) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time() + seconds)
