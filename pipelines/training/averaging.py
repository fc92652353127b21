"""Averaging that says how much of it worked: subclasses of hivemind's averagers with counters and checks.

hivemind 1.1.12 reports a round as successful although part of it failed; these classes count the share of the vector
that was really averaged and the bytes that were sent, and pass every peer's mode on, so that helpers are helpers.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises typing's name alone

import torch
from hivemind.averaging.allreduce import AllReduceRunner, AveragingMode
from hivemind.averaging.partition import BannedException
from hivemind.compression import deserialize_torch_tensor
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import amap_in_executor, as_aiter, azip

from pipelines.training.averaging_streams import (
    ReadingStub,
    first_messages,
    until_farewell,
    until_reader_closes,
    with_farewell,
)

MAX_SECONDS_FOR_PENDING_STEP = 3.0


@dataclass(frozen=True, kw_only=True)
class AveragingRound:
    """What the last rounds of one averager moved, seen from this peer."""

    num_rounds: int
    """Rounds since the start."""

    share_averaged: float
    """Share of the vector for which the last round returned an average, in [0, 1]; the rest kept local values."""

    bytes_sent: int
    """Payload this peer sent in all rounds: its own parts and the averages of others' parts."""

    seconds: float
    """Duration of the last all-reduce, without finding the group."""

    group_size: int
    """Peers in the last round's group, this one included."""


class CountingAllReduceRunner(AllReduceRunner):
    """An all-reduce that tells how many bytes of tensor parts it sends."""

    def __init__(self, *, count_bytes: Callable[[int], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Counted as they leave: answers to slower peers go on after this peer's own result is complete.
        self._count_bytes = count_bytes
        own_index = self.ordered_peer_ids.index(self.peer_id)
        self._own_part_infos = tuple(info for _, info in self.tensor_part_container._input_parts_by_peer[own_index])
        self._all_sent = tuple(asyncio.Event() for _ in self.ordered_peer_ids)

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        try:
            async for message in super()._generate_input_for_peer(peer_index):
                self._count_bytes(len(message.tensor_part.buffer))
                yield message
        finally:
            self._all_sent[peer_index].set()

    def _get_peer_stub(self, peer: PeerID) -> ReadingStub:
        index = self.ordered_peer_ids.index(peer)
        read = partial(
            first_messages, count=self.tensor_part_container.num_parts_by_peer[index], all_sent=self._all_sent[index]
        )
        return ReadingStub(super()._get_peer_stub(peer), "rpc_aggregate_part", read)

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Add a sender's parts to the average and answer with differences, compressed by the run's own codec.

        hivemind answers with its stock codecs, of which the 8-bit one rests on a torch function that is going away and
        fails on a vector of zeros.
        """
        container, part_index, loop = self.tensor_part_container, 0, asyncio.get_running_loop()
        try:
            async for part, weight in amap_in_executor(
                lambda message: (deserialize_torch_tensor(message.tensor_part), message.weight),
                stream,
                max_prefetch=container.prefetch,
            ):
                try:
                    average = await self.tensor_part_reducer.accumulate_part(sender_index, part_index, part, weight)
                except BannedException:
                    break
                answer = await loop.run_in_executor(None, self._compress_answer, average - part, part_index)
                self._count_bytes(len(answer.buffer))
                part_index += 1
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=answer)
        finally:
            if part_index != self.tensor_part_reducer.num_parts:
                await self._ban_sender(self.sender_peer_ids[sender_index])

    def _compress_answer(self, delta: torch.Tensor, part_index: int) -> runtime_pb2.Tensor:
        return self.tensor_part_container.compression.compress(delta, self._own_part_infos[part_index])

    @property
    def share_averaged(self) -> float:
        """Share of the vector whose average has arrived, in [0, 1]."""
        container = self.tensor_part_container
        return 1.0 - container.failed_size / max(1, container.total_size)


class CountsRounds:
    """Mixed into an averager: runs rounds with `CountingAllReduceRunner` and shares their figures across processes."""

    def _share_counters(self) -> None:
        # The rounds run in the averager's own process; these cells are how the trainer reads what happened there.
        self._num_rounds = multiprocessing.Value(ctypes.c_int64, 0)
        self._bytes_sent = multiprocessing.Value(ctypes.c_int64, 0)
        self._share_averaged = multiprocessing.Value(ctypes.c_double, 1.0)
        self._seconds = multiprocessing.Value(ctypes.c_double, 0.0)
        self._group_size = multiprocessing.Value(ctypes.c_int64, 0)
        self._num_senders_served = 0

    @property
    def last_round(self) -> AveragingRound:
        """Figures of the last round and the totals."""
        return AveragingRound(
            num_rounds=self._num_rounds.value,
            share_averaged=self._share_averaged.value,
            bytes_sent=self._bytes_sent.value,
            seconds=self._seconds.value,
            group_size=self._group_size.value,
        )

    def _count_bytes(self, number: int) -> None:
        self._bytes_sent.value += number

    async def rpc_aggregate_part(
        self, stream: StreamOf[averaging_pb2.AveragingData], context: P2PContext
    ) -> StreamOf[averaging_pb2.AveragingData]:
        """Average a sender's parts and answer with the differences; see `DecentralizedAverager`."""
        self._num_senders_served += 1
        try:
            async for message in until_reader_closes(super().rpc_aggregate_part(stream, context)):
                yield message
        finally:
            self._num_senders_served -= 1

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> StreamOf[averaging_pb2.MessageFromLeader]:
        """Accept a peer into a group or send it on; see `DecentralizedAverager`."""
        async for message in until_reader_closes(super().rpc_join_group(request, context)):
            yield message

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> StreamOf[averaging_pb2.DownloadData]:
        """Hand the state out, then say that this was all; see `DecentralizedAverager`."""
        async for message in until_reader_closes(with_farewell(super().rpc_download_state(request, context))):
            yield message

    @classmethod
    def get_stub(cls, p2p: P2P, peer: PeerID, *, namespace: str | None = None) -> ReadingStub:
        """Return a stub that takes a state for whole only when its donor has said so."""
        return ReadingStub(super().get_stub(p2p, peer, namespace=namespace), "rpc_download_state", until_farewell)

    async def _shutdown(self, timeout: float | None) -> None:
        # A peer that has its own result and leaves at once would take the others' last parts with it.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_senders_are_served(), timeout)
        await super()._shutdown(timeout)

    async def _until_senders_are_served(self) -> None:
        while self._num_senders_served:
            await asyncio.sleep(0.05)

    async def _run_allreduce_inplace_(
        self, tensors: Iterable[torch.Tensor], group_info: Any, group_id: bytes | None = None, **kwargs: Any
    ) -> None:
        group_id = group_info.group_id if group_id is None else group_id
        modes = tuple(AveragingMode(self.serializer.loads(gathered)[1]) for gathered in group_info.gathered)
        runner = CountingAllReduceRunner(
            p2p=self._p2p, servicer_type=type(self), prefix=self.prefix, tensors=tensors, group_id=group_id,
            ordered_peer_ids=group_info.peer_ids, modes=modes,
            count_bytes=self._count_bytes, **kwargs,
        )  # fmt: skip
        self._running_groups[group_id].set_result(runner)
        started = time.monotonic()
        try:
            if modes[group_info.peer_ids.index(self.peer_id)] == AveragingMode.AUX:
                async for _ in runner:
                    raise RuntimeError("a helper received averaged tensors although it has none")
            else:
                async for tensor, delta in azip(as_aiter(*tensors), runner):
                    tensor.add_(torch.nan_to_num_(delta, nan=0.0, posinf=0.0, neginf=0.0), alpha=self._averaging_alpha)
                    self._state_updated.set()
        finally:
            self._num_rounds.value += 1
            self._share_averaged.value = runner.share_averaged
            self._seconds.value = time.monotonic() - started
            self._group_size.value = len(group_info.peer_ids)


class SwarmGradientAverager(CountsRounds, GradientAverager):
    """Averages gradients; counts what was really averaged."""

    _rpc_handlers = _stub_type = None  # hivemind caches these per class and would hand out the parent's

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._share_counters()
        super().__init__(*args, **kwargs)


class SwarmStateAverager(CountsRounds, TrainingStateAverager):
    """Holds, averages and hands out parameters and optimizer state; counts what was really averaged.

    Its name is part of the wire protocol: all peers of a run, the auxiliary peer too, use this very class.
    """

    _rpc_handlers = _stub_type = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._share_counters()
        super().__init__(*args, **kwargs)

    def get_current_state(self) -> tuple[Any, Any, Any]:
        """Return the state for a newcomer, after a step that is under way, so that epoch and tensors agree."""
        concurrent.futures.wait(tuple(self.pending_updates), timeout=MAX_SECONDS_FOR_PENDING_STEP)
        return super().get_current_state()
