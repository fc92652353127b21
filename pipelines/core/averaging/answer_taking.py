"""Taking the averages of a round: from each reducer, on the streams that take the parts there, or else from others."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial

from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor, anext, as_aiter, attach_event_on_finished

from pipelines.core.averaging.reduce.suspects import Misbehaviour, PartRefusedError
from pipelines.core.averaging.reducing_end import NumberedAnswer, ReducingEnd
from pipelines.core.averaging.round_state import PREFETCH, RoundState
from pipelines.core.averaging.sending_end import SendingEnd, stream_hello
from pipelines.core.averaging.wire.codec import read_part
from pipelines.core.averaging.wire.signed_parts import answer_statement, answers_request, read_seal
from pipelines.core.averaging.wire.streams import first_messages, in_turn, open_greeted
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


class AnswerTaking:
    """Sends this peer's parts, and takes the answers; `RoundState.missing` says which have not come.

    Reducers are hardly trusted: an answer that is not finite or too long is not used. What one of them does not deliver
    is taken from the other members, who thus agree on which parts have an average.
    """

    def __init__(self, state: RoundState, sending: SendingEnd, reducing: ReducingEnd) -> None:
        self._round, self._sending, self._reducing = state, sending, reducing
        self._opening_seconds = (state.sender_timeout or SENDER_SECONDS) / OPENINGS_PER_TIMEOUT

    async def take_all(self) -> None:
        """Take all answers that are to be had."""
        state = self._round
        reducers = [reducer for reducer, parts in state.parts.items() if parts]
        calls = [self._take if state.sends or reducer == state.peer_id else self._listen for reducer in reducers]
        tasks = [asyncio.create_task(call(reducer)) for call, reducer in zip(calls, reducers, strict=True)]
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            state.over.set()
            self._reducing.reducer.finalize()
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):
                    logger.debug("Answers did not come: %r", error)

    async def _listen(self, reducer: PeerID) -> None:
        """Take a reducer's answers from it and from those that it has answered; send it nothing."""
        await self._take_from_others(reducer, asks_reducer=True)
        self._round.answers.end(reducer)
        if self._round.missing(reducer):
            self._round.name(reducer, Misbehaviour.NO_ANSWER)

    async def _take(self, reducer: PeerID) -> None:
        """Send a reducer its parts of the local vector and take its answers; the reducer may be this peer."""
        state, is_own = self._round, reducer == self._round.peer_id
        own_answers = asyncio.create_task(self._take_from_reducer(reducer))
        try:
            if not is_own:
                await self._take_what_is_late(reducer, own_answers)
            await own_answers
            if missing := state.missing(reducer):
                raise AllreduceException(f"{reducer} left {len(missing)} parts of the vector without an answer")
        except BaseException as error:
            own_answers.cancel()
            await asyncio.wait([own_answers])
            state.answers.end(reducer)
            if isinstance(error, PartRefusedError):
                state.name(reducer, Misbehaviour.BAD_ANSWER)
            elif isinstance(error, Exception) and not (is_own or self._is_over):
                self._reducing.end_unbegun(reducer)
                state.name(reducer, Misbehaviour.NO_ANSWER)
                await self._take_from_others(reducer)
            raise
        finally:
            state.answers.end(reducer)

    @property
    def _is_over(self) -> bool:
        return self._round.over.is_set() or not any(map(self._round.missing, self._round.modes))

    async def _take_from_reducer(self, reducer: PeerID) -> None:
        if reducer != self._round.peer_id:
            found = self._answers_of(reducer)
        elif self._round.sends:
            found = self._reducing.own_answers(self._sending)
        else:
            found = self._reducing.answers_to_others()
        async with aclosing(found) as answers:
            async for answer in answers:
                self._use(reducer, answer)

    async def _take_what_is_late(self, reducer: PeerID, own_answers: asyncio.Task[None]) -> None:
        """While a reducer is silent, take from the others what it has given to them.

        Raises:
            AllreduceException: the others had everything.
        """
        former = -1
        while not own_answers.done():
            missing = self._round.missing(reducer)
            if missing and missing.start == former and await self._take_from_others(reducer, asks_once=True):
                self._round.name(reducer, Misbehaviour.NO_ANSWER)
                if not self._round.missing(reducer):
                    raise AllreduceException(f"{reducer} was silent; the others had its answers")
            former = missing.start
            await asyncio.wait([own_answers], timeout=self._opening_seconds)

    def _use(self, reducer: PeerID, answer: NumberedAnswer) -> bool:
        """Keep an answer, for this peer and the others; False if it has come from somebody else already."""
        part_index, message = answer
        if part_index != self._round.missing(reducer).start:
            return False
        self._round.answers.keep(reducer, part_index, message)
        return True

    def _answers_of(self, reducer: PeerID) -> AsyncGenerator[NumberedAnswer, None]:
        streams = self._round.streams[reducer]
        return in_turn([self._answers_of_stream(reducer, number) for number in streams.numbers], streams.of_parts)

    async def _answers_of_stream(self, reducer: PeerID, number: int) -> AsyncGenerator[NumberedAnswer, None]:
        state, all_sent = self._round, asyncio.Event()
        indices = state.streams[reducer].part_indices(number)
        stream = await open_greeted(
            state.stub_of(reducer).rpc_aggregate_part,
            hello=stream_hello(state.group_id, number),
            messages=attach_event_on_finished(self._sending.messages_of_stream(reducer, number), all_sent),
            is_greeting=lambda message: message.code == averaging_pb2.ACCEPTED,
            seconds=self._opening_seconds,
            attempts=2 * OPENINGS_PER_TIMEOUT,
        )
        if state.reads_last(state.peer_id):
            await all_sent.wait()
        messages = aiter_with_timeout(first_messages(stream, len(indices), all_sent), state.reducer_timeout)
        async for answer in amap_in_executor(
            partial(self._checked, reducer),
            state.arrivals.counted(reducer, messages),
            as_aiter(*indices),
            max_prefetch=PREFETCH,
        ):
            yield answer

    async def _take_from_others(self, reducer: PeerID, *, asks_once: bool = False, asks_reducer: bool = False) -> bool:
        """Ask the other members in turn for the answers that a reducer has not given to this peer; True if they help.

        It ends when nothing is missing, nobody can have it any more, or nothing comes for long; or all were asked once.
        """
        state, seconds = self._round, self._round.reducer_timeout or 2 * SENDER_SECONDS
        # Clients answer no calls, and helpers have no answers.
        nodes = (member for member, mode in state.modes.items() if mode == AveragingMode.NODE)
        members = deque(member for member in nodes if member not in (reducer, state.peer_id))
        if asks_reducer:
            members.appendleft(reducer)
        # Answers that are still on their way when this peer gives up are not given again; who listens to all of them,
        # over links that are full, has to wait for as long as the parts take.
        patience = max(SECONDS_FOR_AN_ANSWER, 2 * self._opening_seconds if asks_reducer else 0.0)
        num_requests, have_helped = len(members) if asks_once else math.inf, False
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds) as limit:
                while members and num_requests and state.missing(reducer):
                    member, num_requests = members.popleft(), num_requests - 1
                    try:
                        async with aclosing(self._passed_on(member, reducer, patience)) as answers:
                            async for answer in answers:
                                have_helped |= self._use(reducer, answer)
                                if not limit.expired():
                                    limit.reschedule(asyncio.get_running_loop().time() + seconds)
                    except TimeoutError:  # it is waiting for the reducer, too
                        members.append(member)
                    except Exception as error:  # peers fail in many ways; another one may have it
                        logger.debug("Peer %s did not pass answers on: %r", member, error)
        return have_helped

    async def _passed_on(
        self, member: PeerID, reducer: PeerID, patience: float
    ) -> AsyncGenerator[NumberedAnswer, None]:
        """Yield what a member has of a reducer's answers, with so many seconds of silence before each.

        Raises TimeoutError if it may get more of them.
        """
        state, missing = self._round, self._round.missing(reducer)
        async with asyncio.timeout(self._opening_seconds):
            stream = await state.stub_of(member).rpc_take_answers(answers_request(state.group_id, reducer, missing))
        async with aclosing(stream):
            messages = aiter_with_timeout(stream, patience)
            for index in missing:
                message = await anext(messages)
                if message.code != averaging_pb2.AVERAGED_PART:  # it gets no more of them itself
                    return
                state.sent.pop((reducer, index), None)  # it may not have come there
                check = partial(self._checked, reducer, message, index)
                yield await asyncio.get_running_loop().run_in_executor(None, check)

    def _checked(self, reducer: PeerID, message: averaging_pb2.AveragingData, part_index: int) -> NumberedAnswer:
        """Return a reducer's answer to one part of its share; runs in a thread. Raises PartRefusedError."""
        if message.code != averaging_pb2.AVERAGED_PART:
            raise AllreduceException(f"a reducer answered {averaging_pb2.MessageCode.Name(message.code)}")
        self._check_seal(reducer, message, part_index)
        own_part, info = self._round.parts[reducer][part_index]
        answer = read_part(message.tensor_part, self._round.terms.compression, info, own_part.shape)
        limit = max(
            MAX_ANSWER_RATIO * norm(own_part),
            MAX_ANSWER_RATIO_TO_OTHERS * self._reducing.typical_value * math.sqrt(own_part.numel()),
        )
        if limit and (length := norm(answer)) > limit:
            raise PartRefusedError(
                Misbehaviour.BAD_ANSWER, f"an average of norm {length:.3g}; expected at most {limit:.3g}"
            )
        return part_index, message

    def _check_seal(self, reducer: PeerID, message: averaging_pb2.AveragingData, part_index: int) -> None:
        """Check that a reducer has signed its answer, and that it names senders of this round."""
        state = self._round
        try:
            signature, contributions = read_seal(message.peer_id)
        except ValueError as error:
            raise AllreduceException(f"{reducer} has not signed its answer") from error
        statement = answer_statement(state.group_id, reducer, part_index, message.tensor_part.buffer, contributions)
        are_senders = state.terms.senders.issuperset(contribution.sender for contribution in contributions)
        if not (are_senders and state.signatures.verify(reducer, statement, signature)):
            raise AllreduceException(f"{reducer} has not signed its answer")
