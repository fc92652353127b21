"""One all-reduce among a group of peers, in which nobody is trusted: see `TrustedAllReduceRunner`."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.partition import AllreduceException
from hivemind.compression import CompressionInfo
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor, as_aiter, attach_event_on_finished

from pipelines.equal_arithmetic import norm
from pipelines.training.averaging.reduce.suspects import Offence, PartRefusedError
from pipelines.training.averaging.sending_end import SendingEnd, stream_hello
from pipelines.training.averaging.wire.codec import read_part
from pipelines.training.averaging.wire.parallel_streams import in_turn
from pipelines.training.averaging.wire.signed_answers import (
    RoundAnswers,
    answer_statement,
    answers_request,
    read_seal,
)
from pipelines.training.averaging.wire.streams import first_messages, open_greeted

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


@dataclass(frozen=True, kw_only=True)
class _Answer:
    part_index: int
    message: averaging_pb2.AveragingData
    values: torch.Tensor


class TrustedAllReduceRunner(SendingEnd):
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

    def __init__(self, *, is_last_attempt: bool, **kwargs: Any) -> None:
        """Prepare one round; `is_last_attempt`: a part that nobody has an average of counts as zero."""
        super().__init__(**kwargs)
        self._is_last_attempt = is_last_attempt
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
        return {peer for peer, offence in self.offences if offence == Offence.BAD_ANSWER}

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
            self._name(reducer, Offence.NO_ANSWER)
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
                self._name(peer_id, Offence.BAD_ANSWER)
            elif isinstance(error, Exception) and not (is_own or self._future.done()):
                await self._end_unbegun_sender(peer_id)
                self._name(peer_id, Offence.NO_ANSWER)
                await self._take_from_others(peer_id)
            self._give_up_missing_parts(peer_index)
            raise
        finally:
            self.answers.end(peer_id)

    async def _take_from_reducer(self, reducer: PeerID) -> None:
        is_own = reducer == self.peer_id
        sends = self.peer_id in self.sender_peer_ids
        own_answers = self._own_answers if sends else self._answers_to_others
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
                self._name(reducer, Offence.NO_ANSWER)
                if not self._missing_parts(peer_index):
                    raise AllreduceException(f"{reducer} was silent; the others had its answers")
            former = missing.start
            await asyncio.wait([own_answers], timeout=self._opening_seconds)

    def _missing_parts(self, peer_index: int) -> range:
        return range(self._num_registered[peer_index], self.tensor_part_container.num_parts_by_peer[peer_index])

    def _register(self, reducer: PeerID, answer: _Answer) -> bool:
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
                        logger.info("Peer %s did not pass answers on: %r", member, error)
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

    async def _own_answers(self) -> AsyncGenerator[_Answer, None]:
        loop, sender_index = asyncio.get_running_loop(), self.sender_peer_ids.index(self.peer_id)
        parts = amap_in_executor(
            self._own_input,
            as_aiter(*enumerate(self.parts_for_local_averaging)),
            max_prefetch=self.tensor_part_container.prefetch,
        )
        async with aclosing(parts):
            async for part_index, part in parts:
                average = await self.tensor_part_reducer.accumulate_part(sender_index, part_index, part, self.weight)
                message = await self._answer(average, part_index)
                values = await loop.run_in_executor(None, self._read, message.tensor_part, part_index)
                yield _Answer(part_index=part_index, message=message, values=values)

    async def _answers_to_others(self) -> AsyncGenerator[_Answer, None]:
        """Take this helper's own answers as they are made for the others; it has no parts that would wait for them."""
        loop, ended = asyncio.get_running_loop(), asyncio.create_task(self.tensor_part_reducer.finished.wait())
        try:
            for _ in self.parts_for_local_averaging:
                asked = asyncio.create_task(self._asked.get())
                await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done() and self._asked.empty():  # all senders are gone
                    asked.cancel()
                    return
                part_index = await asked
                message = await asyncio.shield(self._averages[part_index])
                values = await loop.run_in_executor(None, self._read, message.tensor_part, part_index)
                yield _Answer(part_index=part_index, message=message, values=values)
        finally:
            ended.cancel()

    def _own_input(self, numbered_part: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor]:
        """Take a part of this peer's own share through the codec, as others' parts come; runs in a thread."""
        part_index, part = numbered_part
        _, message, digest = self._signed_part(self.peer_id, part_index, (part, self._own_part_infos[part_index]))
        self.inputs.keep(part_index, self.peer_id, message, digest)
        return part_index, self._read(message.tensor_part, part_index)

    def _answers(self, peer_id: PeerID) -> AsyncGenerator[_Answer, None]:
        peer_index = self.ordered_peer_ids.index(peer_id)
        streams = self._streams_by_reducer[peer_index]
        answers = [self._answers_of_stream(peer_id, peer_index, number) for number in streams.numbers]
        return in_turn(answers, streams.of_parts)

    async def _answers_of_stream(self, peer_id: PeerID, peer_index: int, number: int) -> AsyncGenerator[_Answer, None]:
        parts = self._parts_of_stream(peer_index, number)
        indices = self._streams_by_reducer[peer_index].part_indices(number)[: len(parts)]
        all_sent = asyncio.Event()
        stream = await open_greeted(
            self._get_peer_stub(peer_id).rpc_aggregate_part,
            hello=stream_hello(self.group_id, number),
            messages=attach_event_on_finished(self._messages_of_stream(peer_index, number), all_sent),
            is_greeting=lambda message: message.code == averaging_pb2.ACCEPTED,
            seconds=self._opening_seconds,
            attempts=2 * OPENINGS_PER_TIMEOUT,
        )
        if self.should_delay_results(self.peer_id):
            await all_sent.wait()
        async for answer in amap_in_executor(
            partial(self._check_answer, peer_id),
            self._arriving(
                peer_id, aiter_with_timeout(first_messages(stream, len(parts), all_sent), self.reducer_timeout)
            ),
            as_aiter(*indices),
            as_aiter(*parts),
            max_prefetch=self.tensor_part_container.prefetch,
        ):
            yield answer

    def _check_answer(
        self,
        reducer: PeerID,
        message: averaging_pb2.AveragingData,
        part_index: int,
        part_and_info: tuple[torch.Tensor, CompressionInfo],
    ) -> _Answer:
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
            raise PartRefusedError(Offence.BAD_ANSWER, f"an average of norm {length:.3g}; expected at most {limit:.3g}")
        return _Answer(part_index=part_index, message=message, values=answer)

    def _check_seal(self, reducer: PeerID, message: averaging_pb2.AveragingData, part_index: int) -> None:
        """Check that a reducer has signed its answer, and that it names senders of this round."""
        try:
            signature, contributions = read_seal(message.peer_id)
        except ValueError as error:
            raise AllreduceException(f"{reducer} has not signed its answer") from error
        statement = answer_statement(self.group_id, reducer, part_index, message.tensor_part.buffer, contributions)
        are_senders = self.terms.senders.issuperset(contribution.sender for contribution in contributions)
        if not (are_senders and self._signatures.verify(reducer, statement, signature)):
            raise AllreduceException(f"{reducer} has not signed its answer")


def _extend(limit: asyncio.Timeout, seconds: float) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time() + seconds)
