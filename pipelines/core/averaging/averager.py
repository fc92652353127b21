"""What averagers among strangers share: rounds that check, bound, aggregate by a rule, and count.

hivemind 1.1.12 reports a round as successful although part of it failed, checks neither values nor weights, and takes
helpers for full members. `runner` handles this within a round; this file handles how rounds start and end, and
`answering_averager` what is answered besides.
"""

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises only typing's name

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import enter_asynchronously

from pipelines.core.admission.averaging_gate import GroupSignatures
from pipelines.core.admission.client import PeerAdmission
from pipelines.core.averaging.answering_averager import AnsweringAverager
from pipelines.core.averaging.checks import Checks
from pipelines.core.averaging.division import Division, NewDivision
from pipelines.core.averaging.figures import AveragingRound, Round, SharedFigures
from pipelines.core.averaging.group.group_data import mode_of
from pipelines.core.averaging.group.kept_tasks import kept_from_garbage
from pipelines.core.averaging.group.matchmaking import SPREAD_SHARE, GroupSearch, until_cancelled
from pipelines.core.averaging.group.time_limits import AttemptTimes, attempt_times
from pipelines.core.averaging.patience import Patience
from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule
from pipelines.core.averaging.reduce.suspects import Misbehaviour
from pipelines.core.averaging.reducing_end import RoundMemory
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.wire.codec import bytes_on_the_wire
from pipelines.core.averaging.wire.streams import PART_BYTES, until_reader_closes
from pipelines.core.equal_arithmetic import is_finite
from pipelines.core.swarm.forks import left_out_of_forks
from pipelines.core.swarm.upload_limit import UploadLimit, pass_bytes

logger = logging.getLogger(__name__)

MIN_SHARE_AVERAGED = 0.9
MAX_ATTEMPTS = 2
"""All-reduces for one round. A hostile member can spoil every one, and must not delay the others for ever."""

PLAIN_RULE = AggregationRule()


class RobustAverager(AnsweringAverager):
    """An averager that accepts only admitted peers, and whose rounds check, bound, aggregate by a rule, and count.

    A concrete averager inherits first from it, then from the hivemind class that defines what is averaged. An
    `AveragingGate` decides which peers are admitted, a `GroupSearch` who is in the next group; a round is a
    `TrustedAllReduceRunner`. The figures are for the trainer, in whose process this object is created.
    """

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
        **kwargs: object,
    ) -> None:
        """`admission` is this peer's; None: nothing is checked, and the averager accepts everybody.

        `rounds_begin_together`: see `GroupSearch`; `new_division` makes what says who reduces how much; `checks_type`:
        what averages are checked by; all else is as in `DecentralizedAverager`.
        """
        self._rounds_begin_together, self._new_division = rounds_begin_together, new_division
        self._checks_type = checks_type
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
        super().__init__(
            *args, prefix=prefix, admission=admission, upload_limit=upload_limit,
            **{"part_size_bytes": PART_BYTES, **kwargs},
        )  # fmt: skip

    @property
    def last_round(self) -> AveragingRound:
        """Figures of the last round and the totals."""
        return self._figures.read()

    def run_in_background(self, await_ready: bool = True, timeout: float | None = None) -> None:
        """Start the averaging process, which ignores Ctrl-C; hivemind would make the caller ignore it too."""
        handler = signal.getsignal(signal.SIGINT)
        with left_out_of_forks(self.own_tensors()):
            super().run_in_background(await_ready=False)
        signal.signal(signal.SIGINT, handler)
        if await_ready:
            self.wait_until_ready(timeout)

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """Return tensors of the trainer's process, which the averaging process does not need."""
        return ()

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
                await self._run_allreduce_inplace_(tensors, group_info, peer_fractions=shares, **kwargs)
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

    async def _run_allreduce_inplace_(
        self, tensors: Iterable[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs: Any
    ) -> None:
        group_id = group_info.group_id if group_id is None else group_id
        members, tensors = group_info.peer_ids, tuple(tensors)
        modes = tuple(map(mode_of, group_info.gathered))
        if modes[members.index(self.peer_id)] != AveragingMode.AUX:
            kwargs["weight"] = self._weight_of(tensors, kwargs.get("weight"))
        self._num_attempts_left -= 1
        self._vector_bytes = self._vector_bytes or bytes_on_the_wire(tensors, self.allreduce_kwargs["compression"])
        seconds, search, checks = self._attempt_seconds(), self._search, self._checks
        assert search is not None and checks is not None, "a round begins in `_step` alone"
        if self._division is not None and kwargs.get("sender_timeout") and kwargs.get("reducer_timeout"):
            kwargs |= self._patience.timeouts_of_streams(
                self._division, self._vector_bytes, self.allreduce_kwargs["part_size_bytes"],
                kwargs["sender_timeout"], kwargs["reducer_timeout"],
            )  # fmt: skip
        signatures = self._gate.signatures_of(members)
        runner = self._new_runner(
            tensors=tensors, group_id=group_id, ordered_peer_ids=members, modes=modes, signatures=signatures,
            gathered=group_info.gathered, **kwargs,
        )  # fmt: skip
        self._keep_for_members(runner, signatures)
        self._running_groups[group_id].set_result(runner)
        started, succeeded, is_half = time.monotonic(), False, False
        is_last, longest = self._num_attempts_left == 0, self._patience.times.highest
        search.begin()
        until = longest if is_last or seconds is None else seconds + search.seconds_to_meet
        self._figures.attempt_until.value = started + until
        # Neither clients nor those who only listen lead the group of another attempt.
        followers = {peer for peer, mode in zip(members, modes, strict=True) if mode != AveragingMode.NODE}
        listeners = {peer for peer, mode in zip(members, modes, strict=True) if mode == AveragingMode.AUX}
        watching = asyncio.create_task(
            self._drop_late_senders(runner, seconds)
            if is_last
            else self._watch_late_round(search, set(members) - followers - {self.peer_id}, seconds)
        )
        try:
            async with asyncio.timeout(None if is_last else seconds) as limit:
                await runner.collect()
            is_half = runner.share_averaged < 1.0 and not is_last
            if not is_half:
                await asyncio.get_running_loop().run_in_executor(None, runner.write, tensors)
            succeeded = True
        except TimeoutError as error:
            if not limit.expired():
                raise
            runner.name_late_senders()
            self._patience.note_late(runner, self._division, members, self._vector_bytes)
            reason = AllreduceException(f"it timed out after {time.monotonic() - started:.1f} s")
            # After this kind of error hivemind looks for a group again, unless the step has ended.
            raise reason from error
        finally:
            watching.cancel()
            self._figures.attempt_until.value = 0.0
            self._keep_for_a_while(group_id)
            duration = time.monotonic() - started
            if is_half or not succeeded:
                apart, late = SPREAD_SHARE * duration, runner.late_senders | runner.bad_reducers
                if is_half:  # all that was sent has come, also from who was the last
                    late = self._failed_reducers(runner)
                    # Others may notice as late as at the end of the attempt, or when a silent sender is given up.
                    apart = max(apart, min((seconds or math.inf) - duration, kwargs.get("sender_timeout") or 0.0))
                search.meet_again(members, followers, listeners, late, apart)
                if not is_last:
                    self._keep_step_open(search.seconds_to_meet)
            self._record_round(runner, duration, succeeded, is_over=succeeded and not is_half)
        checks.begin(group_id)
        if runner.share_averaged == 1.0:
            self._patience.note_success(runner, self._division)
        is_first = self._num_attempts_left == MAX_ATTEMPTS - 1
        self._patience.times.note_success(duration, is_whole=is_first and not (is_half or runner.lost_senders))
        if is_half:
            # Peers that aborted this round earlier are looking for a group again, and so does this peer now.
            raise AllreduceException(f"only {100 * runner.share_averaged:.0f} % of the vector was averaged")

    def _keep_for_members(self, runner: Any, signatures: GroupSignatures) -> None:
        """Keep what members may ask for during a round and for a while after it."""
        assert self._checks is not None, "a round begins in `_step` alone"
        self._answers[runner.group_id] = runner.answers
        self._checks.open(runner, signatures.tokens)

    def _new_runner(self, *, ordered_peer_ids: tuple[PeerID, ...], gathered: tuple[bytes, ...], **kwargs: Any) -> Round:
        return self.runner_type(
            p2p=self._p2p, servicer_type=type(self), prefix=self.prefix, ordered_peer_ids=ordered_peer_ids,
            rule=self._rule, recorded_weights=self._recorded_weights, memory=self._memory,
            count_bytes=self._figures.count_bytes, pass_bytes=self._pass_bytes,
            is_last_attempt=self._num_attempts_left == 0, **kwargs,
        )  # fmt: skip

    async def _watch_late_round(self, search: GroupSearch, others: Collection[PeerID], seconds: float | None) -> None:
        """After half of an attempt's time, find out who is still alive; see `GroupSearch.watch`."""
        if seconds is not None:
            await asyncio.sleep(seconds / 2)
            await search.watch(others, self.greet)

    async def _drop_late_senders(self, runner: Round, seconds: float | None) -> None:
        """In the last attempt, do without those who are late when its time is over, instead of giving it up."""
        if seconds is not None:
            await asyncio.sleep(seconds)
            await runner.drop_late_senders()

    def _keep_step_open(self, seconds: float) -> None:
        """Give the group this long to meet for another attempt: the last one may have taken all of the round's time."""
        self._figures.attempt_until.value = time.monotonic() + seconds
        if (step := self._current_step) is not None:
            step._deadline = max(step.deadline, get_dht_time() + seconds)

    def _attempt_seconds(self) -> float | None:
        return self._patience.seconds(self._division, self._vector_bytes)

    def _is_kept_out(self, peer: PeerID) -> bool:
        return self._patience.leaves_out(peer) or (self._checks is not None and self._checks.avoids(peer))

    def _failed_reducers(self, runner: Round) -> set[PeerID]:
        """Return those whose parts have no average that can be used; the others then lack it too."""
        return {
            peer for peer, offence in runner.offences if offence in (Misbehaviour.NO_ANSWER, Misbehaviour.BAD_ANSWER)
        }

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

    def _record_round(self, runner: Round, seconds: float, succeeded: bool, *, is_over: bool) -> None:
        figures, share = self._figures, runner.share_averaged if succeeded else 0.0
        offences = runner.end_round() if is_over else runner.offences
        if is_over:
            absent = runner.lost_senders | runner.banned_senders
            figures.write_senders(peer.to_base58() for peer in runner.sender_peer_ids if peer not in absent)
        figures.num_rounds.value += 1
        figures.share_averaged.value = share
        figures.seconds.value = seconds
        figures.group_size.value = len(runner.sender_peer_ids)
        figures.num_incomplete_rounds.value += share < self._min_share_averaged
        figures.ledger.record_round((peer.to_base58(), offence) for peer, offence in offences)
        if offences or share < self._min_share_averaged:
            why = "; ".join(f"peer {peer.to_base58()} {offence}" for peer, offence in sorted(offences, key=str))
            least = 100 * self._min_share_averaged
            logger.warning(
                "A round averaged %.0f %% of the vector; expected at least %.0f %%. %s", 100 * share, least, why
            )
