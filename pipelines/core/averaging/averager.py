"""What averagers among strangers share: rounds that check, bound, aggregate by a rule, and count.

hivemind 1.1.12 reports a round as successful although part of it failed, checks neither values nor weights, and takes
helpers for full members. `runner` handles this within a round, `attempt` how long it may last; this file handles how
rounds start and end, and what is answered to whom.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises only typing's name

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.p2p.servicer import StubBase
from hivemind.proto import auth_pb2, averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter, enter_asynchronously

from hub_tools.processes.child_watch import end_with_parent
from pipelines.core.admission.averaging_gate import AveragingGate
from pipelines.core.admission.client import PeerAdmission
from pipelines.core.admission.protocol_names import NamedServicer
from pipelines.core.averaging.attempt import Attempt
from pipelines.core.averaging.checks import Checks
from pipelines.core.averaging.division import Division, NewDivision
from pipelines.core.averaging.figures import AveragingRound, Round, SharedFigures
from pipelines.core.averaging.group.group_data import mode_of
from pipelines.core.averaging.group.kept_tasks import kept_from_garbage
from pipelines.core.averaging.group.matchmaking import GroupSearch, until_cancelled
from pipelines.core.averaging.group.time_limits import AttemptTimes, attempt_times
from pipelines.core.averaging.patience import Patience
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.reducing_end import RoundMemory
from pipelines.core.averaging.round_state import RoundState
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.wire.codec import bytes_on_the_wire
from pipelines.core.averaging.wire.signed_parts import read_answers_request
from pipelines.core.averaging.wire.streams import PART_BYTES, until_reader_closes
from pipelines.core.equal_arithmetic import is_finite
from pipelines.core.swarm.forks import forget_ended_calls, left_out_of_forks, set_aside_what_exists
from pipelines.core.swarm.streams.bounded import bound_streams
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes

logger = logging.getLogger(__name__)

MIN_SHARE_AVERAGED = 0.9
MAX_ATTEMPTS = 2
"""All-reduces for one round. A hostile member can spoil every one, and must not delay the others for ever."""

PLAIN_RULE = AggregationRule()


class SwarmAverager(NamedServicer, DecentralizedAverager):
    """An averager that accepts only admitted peers, and whose rounds check, bound, aggregate by a rule, and count.

    An `AveragingGate` decides which peers are admitted, a `GroupSearch` who is in the next group; a round is a
    `TrustedAllReduceRunner`, and members may ask for what came of it until the `Checks` forget it. This object is made
    in the trainer's process, which calls what is no coroutine, and forked: the coroutines run in the averager's.
    """

    PROTOCOL_NAME = "SwarmGradientAverager"
    epoch_to_average: int | None = None
    """Epoch of the values to average next; only peers with the same come into one group; see `PacedKeyManager`."""

    runner_type: type[TrustedAllReduceRunner] = TrustedAllReduceRunner
    times_of_attempts: Callable[..., AttemptTimes] = staticmethod(attempt_times)

    def __init__(
        self,
        *args: object,
        prefix: str,
        admission: PeerAdmission | None,
        rule: AggregationRule = PLAIN_RULE,
        min_share_averaged: float = MIN_SHARE_AVERAGED,
        upload_limit: UploadLimit | None = None,
        rounds_begin_together: bool = True,
        new_division: NewDivision = Division,
        checks_type: type[Checks] = Checks,
        weight_momentum: float = 0.0,
        own_tensors: Callable[[], Iterable[torch.Tensor]] = tuple,
        **kwargs: Any,
    ) -> None:
        """`admission` is this peer's; None: nothing is checked, and the averager accepts everybody.

        `rounds_begin_together`: see `GroupSearch`; `new_division` makes what says who reduces how much; `checks_type`:
        what averages are checked by; `weight_momentum`: see `expect_samples`; `own_tensors` returns tensors that the
        averager's process does not need; all else is as in `DecentralizedAverager`.
        """
        self._weight_momentum, self._own_tensors = weight_momentum, own_tensors
        self._expected_weights: dict[bytes, float] = {}
        self._gate = AveragingGate(admission, prefix, kwargs.get("allreduce_timeout"))
        self._upload_limit = upload_limit
        self._rounds_begin_together, self._new_division = rounds_begin_together, new_division
        self._checks_type = checks_type
        self._checks: Checks | None = None
        self._division: Division | None = None
        self._rule, self._min_share_averaged = rule, min_share_averaged
        self._figures = SharedFigures()  # before hivemind forks the process that runs the rounds
        self._memory = RoundMemory()
        self._recorded_weights: Mapping[PeerID, float] = {}
        self._current_step: StepControl | None = None
        self._num_senders_served = 0
        self._patience = Patience(
            self.times_of_attempts(
                kwargs.get("allreduce_timeout"), kwargs.get("next_chunk_timeout"), kwargs["min_matchmaking_time"]
            )
        )
        self._num_attempts_left, self._vector_bytes = 0, 0.0
        self._search: GroupSearch | None = None
        self._epoch: int | None = None
        super().__init__(*args, prefix=prefix, **{"part_size_bytes": PART_BYTES, **kwargs})

    @property
    def last_round(self) -> AveragingRound:
        """Figures of the last round and the totals."""
        return self._figures.read()

    def run_in_background(self, await_ready: bool = True, timeout: float | None = None) -> None:
        """Start the averaging process, which ignores Ctrl-C; hivemind would make the caller ignore it too."""
        handler = signal.getsignal(signal.SIGINT)
        with left_out_of_forks(self._own_tensors()):
            super().run_in_background(await_ready=False)
        signal.signal(signal.SIGINT, handler)
        if await_ready:
            self.wait_until_ready(timeout)

    def schedule(self, **options: Any) -> StepControl:
        """Look for a group; the round begins with `step`. The options are those of `DecentralizedAverager.step`."""
        self._tell_process("_average_epoch", self.epoch_to_average)
        return super().step(wait=False, require_trigger=True, **options)

    def step(
        self, weight: float = 1.0, control: StepControl | None = None, *, wait: bool = True, **options: Any
    ) -> Any:
        """Average the tensors, which have this weight, in a round that was scheduled, or in another one.

        Returns the round, or after it what `DecentralizedAverager.step` returns.
        """
        control = control or self.schedule(**options)
        control.weight = weight
        control.allow_allreduce()
        return control.result(options.get("timeout")) if wait else control

    def expect_samples(self, samples: Mapping[bytes, float]) -> None:
        """Set the most samples that each peer's signed records make plausible, by bytes of its peer id.

        It bounds the weights of the coming rounds, which are exponential means if gradients are: with the factor
        `weight_momentum`. Call it once before every round.
        """
        former, beta = self._expected_weights, self._weight_momentum
        self._expected_weights = {
            peer: beta * former.get(peer, number) + (1 - beta) * number for peer, number in samples.items()
        }
        self._tell_process("_expect_samples", self._expected_weights)

    def _run_internal(self) -> None:
        set_aside_what_exists()
        end_with_parent()
        super()._run_internal()

    async def add_p2p_handlers(self, p2p: P2P, wrapper: object = None, **kwargs: object) -> None:
        """Answer calls, and refuse those of strangers."""
        forget_ended_calls(p2p)
        bound_streams(p2p)
        await super().add_p2p_handlers(p2p, self._gate.guarded(self) or wrapper, **kwargs)

    async def rpc_introduce(self, request: auth_pb2.RequestAuthInfo, context: P2PContext) -> auth_pb2.ResponseAuthInfo:
        """Let a peer introduce itself; see `AveragingGate.answer`."""
        return self._gate.answer(request, context.remote_id)

    async def greet(self, peer: PeerID) -> auth_pb2.ResponseAuthInfo:
        """Call another averager; return its answer, which contains its token if the run has an authority."""
        stub = self._stub_of(peer)
        return await stub.rpc_introduce(self._gate.introduction(), timeout=self.request_timeout * 2)

    def _stub_of(self, peer: PeerID) -> StubBase:
        return self.get_stub(self._p2p, peer, namespace=self.prefix)

    def _introducing_stub_of(self, peer: PeerID) -> StubBase:
        """Return a stub for calls of peers that may not have checked this one's group yet."""
        return self._gate.introducing(self._stub_of(peer), partial(self._gate.introduce, self.greet, peer))

    async def until_group_is_checked(self, group_id: bytes) -> None:
        """Wait until this peer has checked the members of a group, which another member may have learned of earlier."""
        if group_id not in self._running_groups:
            await self._pending_groups_registered.wait()
        if (group := self._running_groups.get(group_id)) is not None:
            await asyncio.wait([group])

    async def rpc_aggregate_part(
        self, stream: StreamOf[averaging_pb2.AveragingData], context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Take a sender's parts and answer with the averages; see `TrustedAllReduceRunner`."""
        self._num_senders_served += 1
        try:
            async for message in until_reader_closes(super().rpc_aggregate_part(stream, context)):
                await self._pass_bytes(len(message.tensor_part.buffer))
                yield message
        finally:
            self._num_senders_served -= 1

    async def _pass_bytes(self, number: int) -> None:
        """Wait until the upload limit and the pace of this peer's link let so many bytes of a part pass."""
        await pass_bytes(self._upload_limit, number)
        if self._division is not None:
            await pass_bytes(self._division.pacer, number)

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> StreamOf[averaging_pb2.MessageFromLeader]:
        """Accept a peer into a group unless it should be avoided, or redirect it; see `DecentralizedAverager`."""
        gathered = self._gate.opened(request.gather, context.remote_id)
        try:
            self._check_gathered(gathered)
        except ValueError as error:
            logger.warning("Peer %s was not accepted into a group. %s", context.remote_id, error)
            self._distrust(context.remote_id)
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        if self._search is not None and not self._search.accepts(context.remote_id):
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.NOT_LOOKING_FOR_GROUP)
            return
        async for message in until_reader_closes(super().rpc_join_group(request, context)):
            yield message

    async def rpc_take_answers(
        self, request: averaging_pb2.DownloadData, context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Pass a reducer's answers on to a member of the same round that did not get them; see `RoundAnswers`."""
        group_id, reducer, part_indices = read_answers_request(request)
        if self._checks is None or group_id not in self._checks.answers:
            await self.until_group_is_checked(group_id)  # who only listens may ask before this peer has begun
        if self._checks is not None and (answers := self._checks.answers.get(group_id)) is not None:
            async for message in self._passed(answers.given_to(context.remote_id, reducer, part_indices)):
                yield message

    async def rpc_show_inputs(
        self, request: averaging_pb2.DownloadData, context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Show a member of the same round what one of this peer's answers was made of; see `RoundInputs`."""
        if self._checks is not None and (inputs := self._checks.shown(context.remote_id, request)):
            async for message in self._passed(as_aiter(*inputs)):
                yield message

    async def rpc_accuse(
        self, stream: StreamOf[averaging_pb2.AveragingData], context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Hear what a member of the same round has to show against another one; see `Checks.hear`."""
        if self._checks is not None:
            async for message in self._passed(self._checks.hear(context.remote_id, stream)):
                yield message

    async def _passed(
        self, messages: AsyncIterable[averaging_pb2.AveragingData]
    ) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Yield messages as the upload limit lets them pass."""
        async for message in until_reader_closes(messages):
            await pass_bytes(self._upload_limit, len(message.tensor_part.buffer))
            yield message

    async def _shutdown(self, timeout: float | None) -> None:
        # A peer that leaves as soon as it has its own result would take the others' last parts with it.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_senders_are_served(), timeout)
        if self._checks is not None:
            self._checks.end()
        await super()._shutdown(timeout)

    async def _until_senders_are_served(self) -> None:
        while self._num_senders_served:
            await asyncio.sleep(0.05)

    async def _declare_for_download_periodically(self) -> None:
        """Declare nothing: the records of `StateTransfer` say who holds which state.

        hivemind would store it again for every tensor that a round has averaged, all at once, and the DHT would be too
        busy to answer peers looking for the next group.
        """

    async def _step(self, *, step: StepControl, **kwargs: object) -> None:
        self._gate.prove(step, self.peer_id, self._told(step.data_for_gather))
        step.wait_for_cancel = partial(until_cancelled, step)
        self._checks = self._checks or self._checks_type(
            self.peer_id, self._stub_of, self._name_outside_a_round, self._upload_limit
        )
        if self.mode == AveragingMode.AUX:  # those who send nothing would make empty groups
            self._matchmaking.client_mode = True
        self._search = self._search or GroupSearch(
            self._matchmaking,
            self._rounds_begin_together,
            partial(self._name_outside_a_round, offence=Misbehaviour.STALLED),
            self._is_kept_out,
            self._gate.may_sign,
        )
        self._search.average_epoch(self._epoch)
        self._search.begin()
        self._num_attempts_left, self._current_step = MAX_ATTEMPTS if step.allow_retries else 1, step
        try:
            with kept_from_garbage():  # while it waits for the trainer's process to allow the round
                await super()._step(step=step, **kwargs)
        finally:
            del step.wait_for_cancel  # which refers to the step: its pipes would stay open until garbage is collected
            self._current_step, self._figures.attempt_until.value = None, 0.0
            self._search.end()

    async def _aggregate_with_group(self, group_info: GroupInfo, min_vector_size: int, **kwargs: Any) -> Any:
        group_info = self._gate.checked(group_info)
        try:
            for gathered in group_info.gathered:
                self._check_gathered(gathered)
        except ValueError as error:  # the leader should not have let it in, or has made it up
            logger.warning("A group was aborted. %s", error)
            self._distrust(self._search.leader if self._search is not None else None)
            raise MatchmakingException(f"A member of the group cannot be understood. {error}") from error
        try:
            async with enter_asynchronously(self.get_tensors()) as tensors, self._dividing(group_info) as shares:
                await self._make_attempt(tuple(tensors), group_info, shares, **kwargs)
            if self._search is not None:
                self._search.remember([peer for peer in group_info.peer_ids if peer != self.peer_id])
            return dict.fromkeys(group_info.peer_ids)
        except BaseException as error:  # also when it is out of time: hivemind then looks for a group again
            if isinstance(error, Exception):
                next_step = "the group tries again" if self._num_attempts_left > 0 else "it was the last one"
                logger.warning("An attempt to average failed; %s. %r", next_step, error)
                logger.debug("Where it failed:", exc_info=True)
            raise MatchmakingException(f"A round failed: {error!r}") from error

    @asynccontextmanager
    async def _dividing(self, group_info: GroupInfo) -> AsyncIterator[tuple[int, ...]]:
        """Yield how many values of the vector each member reduces; measure this peer's link meanwhile."""
        division, peers = self._division, group_info.peer_ids
        assert division is not None, "a round begins in `_step` alone"
        ids = [peer.to_bytes() for peer in peers]
        async with division.measuring():
            yield division.divide(peers.index(self.peer_id), ids, group_info.gathered, self.total_size)
        self._figures.note_link(division.measured)

    def _told(self, gathered: bytes) -> bytes:
        """Return what this peer tells its group, given what hivemind would tell."""
        self._division = self._division or self._new_division(self.dht.pid, self.bandwidth)
        return self._division.told(gathered)

    def _check_gathered(self, gathered: bytes) -> None:
        """Raise ValueError if no honest member tells its group this."""
        mode_of(gathered)

    def _tell_process(self, method: str, *arguments: object) -> None:
        """Call a method in the averager's process, before anything it is told later."""
        self._outer_pipe.send((method, list(arguments), {}))

    async def _average_epoch(self, epoch: int | None) -> None:
        """From the next step on, match only peers that average the same epoch's values; None: any peer."""
        self._epoch = epoch

    async def _expect_samples(self, samples: Mapping[bytes, float]) -> None:
        self._recorded_weights = {PeerID(peer_id): number for peer_id, number in samples.items()}

    async def _make_attempt(
        self, tensors: tuple[torch.Tensor, ...], group: GroupInfo, shares: tuple[int, ...], **options: Any
    ) -> None:
        """Make one attempt at the round; raises AllreduceException if the members have to meet again."""
        modes = dict(zip(group.peer_ids, map(mode_of, group.gathered), strict=True))
        if modes[self.peer_id] != AveragingMode.AUX:
            options["weight"] = self._weight_of(tensors, options.get("weight"))
        self._num_attempts_left -= 1
        self._vector_bytes = self._vector_bytes or bytes_on_the_wire(tensors, self.allreduce_kwargs["compression"])
        if self._division is not None and options.get("sender_timeout") and options.get("reducer_timeout"):
            options |= self._patience.timeouts_of_streams(
                self._division, self._vector_bytes, self.allreduce_kwargs["part_size_bytes"],
                options["sender_timeout"], options["reducer_timeout"],
            )  # fmt: skip
        search, checks = self._search, self._checks
        assert search is not None and checks is not None, "a round begins in `_step` alone"
        seconds, is_last = self._attempt_seconds(), self._num_attempts_left == 0
        round_ = self._new_round(group, modes, tensors=tensors, peer_fractions=shares, **options)
        attempt = Attempt(round_, modes, search, seconds=seconds, is_last=is_last)
        self._running_groups[group.group_id].set_result(round_)
        search.begin()
        until = self._patience.times.highest if is_last or seconds is None else seconds + search.seconds_to_meet
        self._figures.attempt_until.value = time.monotonic() + until
        try:
            await attempt.make(tensors, self.greet)
        finally:
            checks.keep_for_a_while(group.group_id)
            self._end_attempt(attempt, group, options.get("sender_timeout") or 0.0)
        checks.begin(group.group_id)
        if round_.share_averaged == 1.0:
            self._patience.note_success(round_, self._division)
        is_first = self._num_attempts_left == MAX_ATTEMPTS - 1
        is_whole = is_first and not (attempt.is_half or round_.lost_senders)
        self._patience.times.note_success(attempt.duration, is_whole=is_whole)
        if attempt.is_half:
            # Peers that aborted this round earlier are looking for a group again, and so does this peer now.
            raise AllreduceException(f"only {100 * round_.share_averaged:.0f} % of the vector was averaged")

    def _new_round(self, group: GroupInfo, modes: Mapping[PeerID, AveragingMode], **options: Any) -> Round:
        """Return a round of a group that begins, and keep what its members may ask for."""
        assert self._checks is not None, "a round begins in `_step` alone"
        state = RoundState.of(
            peer_id=self.peer_id, group_id=group.group_id, modes=modes, rule=self._rule, stub_of=self._stub_of,
            signatures=self._gate.signatures_of(modes), count_bytes=self._figures.count_bytes,
            is_last_attempt=self._num_attempts_left == 0, **options,
        )  # fmt: skip
        self._checks.open(state)
        return self.runner_type(
            state, recorded_weights=self._recorded_weights, memory=self._memory, pass_bytes=self._pass_bytes
        )

    def _end_attempt(self, attempt: Attempt, group: GroupInfo, silent_seconds: float) -> None:
        """Have the members meet again unless the attempt is over, and record it; see `Attempt.meet_again`."""
        round_, share = attempt.round, attempt.round.share_averaged if attempt.is_over or attempt.is_half else 0.0
        self._figures.attempt_until.value = 0.0
        if attempt.has_timed_out:
            self._patience.note_late(round_, self._division, group.peer_ids, self._vector_bytes)
        if not attempt.is_over:
            seconds = attempt.meet_again(silent_seconds)
            if not attempt.is_last:
                self._keep_step_open(seconds)
        else:
            round_.end_round()
            absent = round_.lost_senders | round_.banned_senders
            self._figures.write_senders(peer.to_base58() for peer in round_.sender_peer_ids if peer not in absent)
        self._figures.record(round_, attempt.duration, share, self._min_share_averaged)

    def _keep_step_open(self, seconds: float) -> None:
        """Give the group this long to meet for another attempt: the last one may have taken all of the round's time."""
        self._figures.attempt_until.value = time.monotonic() + seconds
        if (step := self._current_step) is not None:
            step._deadline = max(step.deadline, get_dht_time() + seconds)

    def _attempt_seconds(self) -> float | None:
        return self._patience.seconds(self._division, self._vector_bytes)

    def _is_kept_out(self, peer: PeerID) -> bool:
        return self._patience.leaves_out(peer) or (self._checks is not None and self._checks.avoids(peer))

    def _weight_of(self, tensors: tuple[torch.Tensor, ...], weight: float | None) -> float:
        """Return the weight of this peer's vector; a non-finite vector is replaced by zeros and weighs nothing."""
        if not all(map(is_finite, tensors)):
            self._figures.num_withheld.value += 1
            logger.error(
                "Values to be averaged are not finite. They are not sent; this peer takes the average of the others."
            )
            weight = 0.0
        if weight == 0:
            for tensor in tensors:
                tensor.zero_()
        return 1.0 if weight is None else weight

    def _distrust(self, peer: PeerID | None) -> None:
        if self._checks is not None and peer is not None:
            self._checks.distrust(peer, Misbehaviour.NOT_UNDERSTOOD)

    def _name_outside_a_round(self, peer: PeerID, offence: Misbehaviour) -> None:
        logger.warning("Peer %s %s.", peer.to_base58(), offence)
        self._figures.ledger.record_round([(peer.to_base58(), offence)])
