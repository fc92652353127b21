"""Averaging that says how much of it worked: subclasses of hivemind's averagers with counters and checks.

hivemind 1.1.12 reports a round as successful although part of it failed; these classes count the share of the vector
that was really averaged and the bytes that were sent, and pass every peer's mode on, so that helpers are helpers.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import math
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises typing's name alone

import numpy as np
import torch
from hivemind.averaging.allreduce import AllReduceRunner, AveragingMode
from hivemind.averaging.partition import BannedException
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    SizeAdaptiveCompression,
    Uniform8BitQuantization,
    deserialize_torch_tensor,
)
from hivemind.compression.quantization import average_buckets
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import amap_in_executor, as_aiter, azip

from pipelines.training.training_run import TrainingRun

MAX_SECONDS_FOR_PENDING_STEP = 3.0
SECONDS_FOR_LAST_ANSWERS = 1.5


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


class FiniteUniform8BitQuantization(Uniform8BitQuantization):
    """hivemind's uniform 8-bit codec on the wire, which refuses values that are not finite.

    The range is +-3 standard deviations; values beyond it are clipped and the bucket means are sent along.
    """

    def quantize(self, tensor: torch.Tensor, allow_inplace: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return 8-bit indices of the tensor's shape and the 256 float32 bucket means.

        Raises:
            ValueError: the tensor has a value that is not finite.
        """
        values = tensor.to(torch.float32)
        mean = values.mean()
        centred = values - mean
        deviation = torch.linalg.vector_norm(centred) / math.sqrt(max(1, values.numel() - 1))
        if not torch.isfinite(deviation):
            raise ValueError("A tensor with values that are not finite was to be averaged; it is kept at home.")
        scale = torch.clamp(self.RANGE_IN_SIGMAS * deviation / self.n_bins, min=torch.finfo(torch.float32).tiny)
        indices = torch.clamp(torch.round(centred / scale) + self.n_bins // 2, 0, self.n_bins - 1).to(torch.uint8)
        buckets = average_buckets(values, indices, self.n_bins)
        return indices.numpy(), buckets.numpy().astype(self.codebook_dtype)


def averaging_compression(run: TrainingRun) -> CompressionBase:
    """Return the codec that all peers of the run use on the wire (paper, section 3.3)."""
    if run.averaging_compression == "none":
        return NoCompression()
    if run.averaging_compression == "float16":
        return Float16Compression()
    return SizeAdaptiveCompression(
        threshold=run.min_8bit_elements, less=Float16Compression(), greater_equal=FiniteUniform8BitQuantization()
    )


def check_codec(compression: CompressionBase, num_elements: int = 2**16) -> None:
    """Send a vector through the codec and back, as a receiving peer would.

    hivemind 1.1.12 with numpy 2.4 fails here, on the receiving side only, and silently loses half of every round.

    Raises:
        RuntimeError: the vector does not come back.
    """
    values = torch.linspace(-1.0, 1.0, num_elements)
    info = CompressionInfo.from_tensor(values, key=0)
    try:
        received = deserialize_torch_tensor(compression.compress(values, info, allow_inplace=False))
    except TypeError as error:
        raise RuntimeError(
            f"The wire codec fails on this machine ({error}; numpy {np.__version__}), so averaging would silently lose "
            "data. Install a numpy that hivemind 1.1.12 works with: pip install 'numpy<2.4'"
        ) from error
    error_norm = (received - values).norm() / values.norm()
    if not error_norm < 0.05:
        raise RuntimeError(f"The wire codec returns a vector that is off by {error_norm:.0%}; expected less than 5 %.")


class CountingAllReduceRunner(AllReduceRunner):
    """An all-reduce that tells how many bytes of tensor parts it sends."""

    def __init__(self, *, count_bytes: Callable[[int], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Counted as they leave: answers to slower peers go on after this peer's own result is complete.
        self._count_bytes = count_bytes
        own_index = self.ordered_peer_ids.index(self.peer_id)
        self._own_part_infos = tuple(info for _, info in self.tensor_part_container._input_parts_by_peer[own_index])

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in super()._generate_input_for_peer(peer_index):
            self._count_bytes(len(message.tensor_part.buffer))
            yield message

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
        self._last_answer = -math.inf

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
            async for message in super().rpc_aggregate_part(stream, context):
                yield message
        finally:
            self._num_senders_served -= 1
            self._last_answer = time.monotonic()

    async def _shutdown(self, timeout: float | None) -> None:
        # A peer that has its own result and leaves at once would take the others' last parts with it.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_senders_are_served(), timeout)
        await super()._shutdown(timeout)

    async def _until_senders_are_served(self) -> None:
        # The last answers may still be on their way through the libp2p daemon, which ends after this.
        while self._num_senders_served or time.monotonic() - self._last_answer < SECONDS_FOR_LAST_ANSWERS:
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
