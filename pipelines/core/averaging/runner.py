"""One all-reduce among a group of peers, in which nobody is trusted: see `TrustedAllReduceRunner`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import torch
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, aiter_with_timeout, anext, as_aiter, attach_event_on_finished

from pipelines.core.averaging.answer_taking import AnswerTaking
from pipelines.core.averaging.figures import Round
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.reducing_end import ReducingEnd, RoundMemory
from pipelines.core.averaging.round_state import RoundState
from pipelines.core.averaging.sending_end import SendingEnd, pass_at_once, stream_number_of
from pipelines.core.averaging.wire.codec import read_part
from pipelines.core.averaging.wire.streams import held_back


class TrustedAllReduceRunner(Round):
    """An all-reduce that checks its inputs, aggregates by the run's rule, and reports who misbehaved.

    Senders are not trusted: parts and weights are checked and bounded before they are aggregated, and a sender of
    anything impossible is excluded from the round at once (`ReducingEnd`). Reducers are hardly trusted either
    (`AnswerTaking`), and `checks` can ask for their inputs later. A stream that fails to open is retried.

    Senders sign their parts, and reducers their answers with what they made them of. In the last attempt at a round a
    part without an average counts as zero for all.

    In hivemind every member receives its own `average - own part` and adds it to what it has: members then differ by
    rounding, and in 8 bits by 3e-3 to 9e-3 of a tensor's norm after four epochs (measured, three peers). Here all
    members, including the reducer, take the average as it came out of the codec, so that whatever they had before, they
    agree in every bit that they have received. The reducer's own part goes through the codec too, so that others can
    make the average again.

    A member that does not send listens: it takes all answers from the others. It helps if it reduces as well.
    """

    sending_type: Callable[..., SendingEnd] = SendingEnd
    reducing_type: Callable[..., ReducingEnd] = ReducingEnd

    def __init__(
        self,
        state: RoundState,
        *,
        recorded_weights: Mapping[PeerID, float],
        memory: RoundMemory,
        pass_bytes: Callable[[int], Awaitable[None]] = pass_at_once,
    ) -> None:
        """Prepare one round.

        `recorded_weights`: the most weight that each peer's signed records make plausible, as far as it is known.
        `pass_bytes` waits until so many bytes may be sent.
        """
        super().__init__(state.senders, state.offences)
        self.state = state
        self._reducing = self.reducing_type(state, recorded_weights, memory)
        self._taking = AnswerTaking(state, self.sending_type(state, pass_bytes), self._reducing)
        self.banned_senders, self.lost_senders = self._reducing.banned_senders, self._reducing.lost_senders

    @property
    def share_averaged(self) -> float:
        """Share of the vector whose average has arrived, in [0, 1]."""
        return self.state.share_answered

    @property
    def late_senders(self) -> set[PeerID]:
        """See `ReducingEnd`."""
        return self._reducing.late_senders

    @property
    def share_reduced(self) -> float:
        """Share of the vector that this peer reduces, in [0, 1]."""
        return self._reducing.share_reduced

    def delivered_mbit(self) -> dict[bytes, float]:
        """See `Round`. A peer from which nothing has come, or that was lost, is left out."""
        absent = self.lost_senders | self.banned_senders
        rates = self.state.arrivals.rates_until_last()
        return {peer.to_bytes(): rate for peer, rate in rates.items() if peer not in absent}

    def late_mbit(self) -> dict[PeerID, float]:
        """See `Round`."""
        return self.state.arrivals.rates_so_far(self.late_senders)

    def end_round(self) -> None:
        """See `Round`. Call it when the round has succeeded: after a failed one honest peers send the same again."""
        self._reducing.end_round()

    def drop_late_senders(self) -> None:
        """See `Round`. If it is most of the others, this peer is cut off or slow, and its answers are all they have."""
        late = self.late_senders - {self.state.peer_id}
        if 2 * len(late) < len(self.sender_peer_ids):
            for peer in late:
                self._reducing.ban(peer)

    async def collect(self) -> None:
        """Take all averages; see `Round`."""
        unbegun = asyncio.create_task(self._reducing.end_unbegun_senders())
        try:
            await self._taking.take_all()
        finally:
            unbegun.cancel()

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the averages into the averager's tensors, part by part; see `Round`. It needs no memory for a copy."""
        for reducer, parts in self.state.parts.items():
            answers = self.state.answers.held(reducer)
            for index, (part, info) in enumerate(parts):
                if (answer := answers.get(index)) is not None:
                    part.copy_(read_part(answer.tensor_part, self.state.terms.compression, info, part.shape))
                elif self.state.is_last_attempt:
                    part.zero_()

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Greet a sender, take the parts of one stream and answer with their aggregate with the other senders'.

        A stream that ends before its first part says nothing about the sender, who may open another one; one that ends
        later ends the sender's part in the round.
        """
        sender, timeout, hello = context.remote_id, self.state.sender_timeout, await anext(stream)
        if (refusal := self._refusal(sender, hello)) is not None:
            yield averaging_pb2.AveragingData(code=refusal)
            return
        yield averaging_pb2.AveragingData(code=averaging_pb2.ACCEPTED)
        try:
            first = await asyncio.wait_for(anext(stream), timeout)
        except (StopAsyncIteration, TimeoutError):
            return
        number = stream_number_of(hello)
        if not self._reducing.begin_stream(sender, number):
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        all_received = asyncio.Event()
        parts = attach_event_on_finished(achain(as_aiter(first), stream), all_received)
        answers = self._reducing.answers_to_stream(aiter_with_timeout(parts, timeout), sender, number)
        if self.state.reads_last(sender):
            answers = held_back(answers, all_received)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        except Exception:
            yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
            raise

    def _refusal(self, sender: PeerID, hello: averaging_pb2.AveragingData) -> int | None:
        """Return the code by which a stream is refused; None: it is not."""
        state = self.state
        if sender in state.modes and sender not in state.terms.senders:
            state.name(sender, Misbehaviour.NOT_A_SENDER)
        if sender not in state.terms.senders or stream_number_of(hello) not in state.streams[state.peer_id].numbers:
            return averaging_pb2.PROTOCOL_VIOLATION
        if hello.group_id != state.group_id:
            return averaging_pb2.BAD_GROUP_ID
        return averaging_pb2.INTERNAL_ERROR if state.over.is_set() else None
