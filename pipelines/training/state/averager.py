"""The averager that keeps the training state, serves it and downloads it; `transfer` decides when."""

import asyncio
import contextlib
import logging
import multiprocessing
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any
from typing import AsyncIterator as StreamOf  # noqa: UP035 - hivemind recognises only typing's name

import torch
from hivemind.compression import CompressionInfo
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import MPFuture

from pipelines.swarm.upload_limit import pass_bytes
from pipelines.training.averaging.averager import RobustAverager
from pipelines.training.averaging.wire.streams import ReadingStub, until_farewell, until_reader_closes, with_farewell
from pipelines.training.state.digest import StateManifest, named_state
from pipelines.training.state.download import (
    WANT_MANIFEST,
    WANT_NOTHING,
    DonorReport,
    DownloadLimits,
    StateDownload,
    StateDownloadError,
    StateRefusedError,
    read_request,
)
from pipelines.training.state.snapshot import CHUNK_BYTES, StateSnapshot

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STAY = 15.0
"""How long a snapshot being sent waits for a newcomer that has stopped reading."""

SECONDS_BETWEEN_REQUESTS = 2.0
"""How long it waits for the newcomer's next request. With more it would fall behind a swarm of short epochs."""


class SwarmStateAverager(RobustAverager, TrainingStateAverager):
    """Keeps, steps and serves parameters and optimizer state. It averages nothing: equal steps keep peers equal.

    All peers of a run use it, including the auxiliary peer. It serves a snapshot, so that epoch and tensors match
    whatever happens to the live state meanwhile.
    """

    PROTOCOL_NAME = "SwarmStateAverager"
    apply_parameters: Callable[[], None] | None = None
    """Applies new parameters to the model; None: they overwrite the model's own."""

    _downloading: asyncio.Timeout | None = None
    """The time limit of the current download, in the averager's process."""

    _readers: Mapping[PeerID, float] = {}
    """Until when somebody who downloads the state asks for it to stay; in the averager's process."""

    def __init__(self, **kwargs: Any) -> None:
        self.state_epoch = self._stepped_epoch = 0
        self.model_epoch = 0
        """Epoch of the model's parameters; with a step in the background, the state's is ahead of it."""

        self.state_changed = threading.Event()
        self._swarm_id = kwargs["prefix"]
        self._changing, self._snapshot_lock = threading.Lock(), threading.Lock()
        self._num_changes = self._num_changes_in_snapshot = 0
        self._num_received = multiprocessing.Value("q", 0)
        super().__init__(**kwargs)

    def _apply_optimizer_parameters_(self) -> None:
        self.model_epoch = self._stepped_epoch
        if self.apply_parameters is None:
            super()._apply_optimizer_parameters_()
        else:
            self.apply_parameters()

    def _init_tensor_infos(self) -> tuple[CompressionInfo, ...]:
        # hivemind's last call before it forks the process that will read the snapshot.
        self.snapshot = StateSnapshot(self.named_state(), swarm_id=self._swarm_id)
        return super()._init_tensor_infos()

    def own_tensors(self) -> Iterator[torch.Tensor]:
        """Return the model's parameters, all gradients and the optimizer's statistics."""
        for parameter in (*self.main_parameters, *self.optimized_parameters):
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        for state in self.optimizer.state.values():
            yield from state.values()

    def named_state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors of the state by name."""
        return named_state(self.optimizer, self.extra_tensors)

    @property
    def optimized_parameters(self) -> list[torch.Tensor]:
        """The parameters that the optimizer steps, float32 on the CPU, in the order of the shared state."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def num_received(self) -> int:
        """Bytes of the state received in the current download."""
        return self._num_received.value

    def _do(self, wait_for_trigger: Callable[[], bool] | None, optimizer_step: bool, *args: Any, **kwargs: Any) -> None:
        """Run an optimizer step unless its trigger returns False or fails; no snapshot is taken meanwhile."""
        with self._changing:
            epoch = self.local_epoch  # `step` has already incremented it
            try:
                steps = optimizer_step and (wait_for_trigger is None or wait_for_trigger())
            except Exception as error:  # whoever waits for the trigger's result decides what follows
                logger.info("The state stays as it is: %s", error)
                return
            self._stepped_epoch = epoch
            super()._do(None, steps, *args, **kwargs)
            self._note_change(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a state changed from outside; the learning rate follows."""
        self.local_epoch = self.model_epoch = self._stepped_epoch = epoch
        self.optimizer._opt_called = True  # else torch warns of a scheduler that begins: others made these steps
        self._update_scheduler()
        self._note_change(epoch)

    def restore_state(self, tensors: Mapping[str, torch.Tensor], epoch: int) -> None:
        """Go back to an earlier `named_state`."""
        with torch.no_grad(), self._changing, self.lock_averaged_tensors:
            for name, tensor in self.named_state().items():
                tensor.copy_(tensors[name])
            if self.offload_optimizer:
                self._apply_optimizer_parameters_()
            self.set_epoch(epoch)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let no step happen in this block, in which model, optimizer and `state_epoch` belong together.

        Not for peers with local steps, whose models have parameters of their own.
        """
        with self._changing, self.lock_averaged_tensors:
            if self.offload_optimizer:  # the last step may have been made in the background
                self._apply_optimizer_parameters_()
            yield

    def take_part_in(self, epoch: int) -> None:
        """Continue in an epoch with the state as it is; the state keeps its own epoch in this peer's signed record."""
        self.local_epoch = epoch

    def _note_change(self, epoch: int) -> None:
        self.state_epoch = epoch
        self._num_changes += 1
        self.state_changed.set()

    @property
    def snapshot_is_current(self) -> bool:
        """Whether the snapshot is the state after the last step."""
        return self._num_changes_in_snapshot == self._num_changes and self.snapshot.manifest() is not None

    def take_snapshot(self) -> StateManifest | None:
        """Copy the state between two steps, hash the copy and offer it to newcomers; return its manifest.

        Returns None, and offers nothing, if a value is not finite.
        """
        with self._snapshot_lock:
            with self._changing, self.lock_averaged_tensors:
                epoch, num_changes = self.state_epoch, self._num_changes
                self.snapshot.begin()
                self.snapshot.fill(self.named_state())
            try:
                manifest = self.snapshot.seal(epoch)
            except ValueError as error:
                logger.warning("%s", error)
                return None
            self._num_changes_in_snapshot = num_changes
            return manifest

    def download(
        self,
        *,
        digest: str,
        epoch: int,
        donors: list[str],
        limits: DownloadLimits,
        total_seconds: float,
        show: Callable[[int, int], None],
        is_to_stop: Callable[[], bool] = lambda: False,
    ) -> DonorReport:
        """Download the state with this digest from these donors and load it; `show` gets bytes done and total.

        Raises:
            StateDownloadError: the donors did not deliver in time, or `is_to_stop`; what has arrived is kept for a
                retry.
            StateRefusedError: the state is unusable, whoever serves it.
        """
        order = dict(digest=digest, epoch=epoch, donors=donors, limits=asdict(limits), seconds=total_seconds)
        with self._snapshot_lock:
            self._num_received.value = 0
            future: MPFuture = MPFuture()
            self._tell_process("_download", order, future)
            answer = self._wait(
                future, total_seconds + limits.chunk_seconds, lambda: show(*self._progress()), is_to_stop
            )
            show(*self._progress())
            report = DonorReport(**answer["report"])
            if answer["refused"]:
                raise StateRefusedError(answer["refused"], report)
            if answer["failed"]:
                raise StateDownloadError(answer["failed"], report)
            self._take_over(epoch)
        return report

    def _wait(
        self, future: MPFuture, seconds: float, look: Callable[[], None], is_to_stop: Callable[[], bool]
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < deadline:
            try:
                return future.result(timeout=SECONDS_BETWEEN_LOOKS)
            except TimeoutError:
                look()
            if is_to_stop():
                self._tell_process("_end_download")
                raise StateDownloadError("The download was stopped: this peer leaves.", DonorReport())
        raise StateDownloadError("The averager's process does not answer.", DonorReport())

    def _progress(self) -> tuple[int, int]:
        return min(self.num_received, self.snapshot.num_bytes), self.snapshot.num_bytes

    def _take_over(self, epoch: int) -> None:
        self.restore_state(self.snapshot.tensors, epoch)
        self._num_changes_in_snapshot = self._num_changes

    async def _download(self, order: dict[str, Any], future: MPFuture) -> None:
        """Executed in the averager's process, which can talk to other peers."""
        download = StateDownload(
            self.snapshot,
            order["donors"],
            self._ask,
            DownloadLimits(**order["limits"]),
            digest=order["digest"],
            epoch=order["epoch"],
            swarm_id=self._swarm_id,
            count_bytes=self._count_received,
        )
        refused = failed = None
        try:
            async with asyncio.timeout(order["seconds"]) as self._downloading:
                self.snapshot.complete(await download.run())
        except StateRefusedError as error:
            refused = str(error)
        except TimeoutError:
            failed = f"The state did not arrive within {order['seconds']:.0f} s."
        except Exception as error:  # whatever the error, the trainer is waiting for an answer
            failed = str(error) or repr(error)
        self._downloading = None
        future.set_result(dict(report=asdict(download.report()), refused=refused, failed=failed))
        await download.take_leave()

    async def _end_download(self) -> None:
        if self._downloading is not None:
            self._downloading.reschedule(asyncio.get_running_loop().time())

    def _count_received(self, number: int) -> None:
        self._num_received.value += number

    async def _ask(self, donor: str, request: bytes) -> AsyncGenerator[bytes, None]:
        stub = self.get_stub(self._p2p, PeerID.from_base58(donor), namespace=self.prefix)
        async with aclosing(await stub.rpc_download_state(averaging_pb2.DownloadData(metadata=request))) as messages:
            async for message in messages:
                yield message.tensor_part.buffer

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadData, context: P2PContext
    ) -> StreamOf[averaging_pb2.DownloadData]:
        """Serve the snapshot's hashes or tensors and the end marker; less if the snapshot is, or becomes, another."""
        async for message in until_reader_closes(with_farewell(self._hand_out(request.metadata, context.remote_id))):
            await pass_bytes(self._upload_limit, message.ByteSize())
            yield message

    async def _hand_out(self, request: bytes, peer: PeerID) -> AsyncGenerator[averaging_pb2.DownloadData, None]:
        want, digest, indices = read_request(request, len(self.snapshot.layout))
        generation, manifest = self.snapshot.generation, self.snapshot.manifest()
        if not self.allow_state_sharing or manifest is None or manifest.digest != digest:
            return
        if want == WANT_NOTHING:
            self._hold(peer, 0)
            return
        self._hold(peer, SECONDS_TO_STAY)
        if want == WANT_MANIFEST:
            text = manifest.encode()
            for start in range(0, len(text), CHUNK_BYTES):
                yield _message(text[start : start + CHUNK_BYTES])
        for index in indices:
            for chunk in self.snapshot.read(generation, self.snapshot.layout[index]):
                self._hold(peer, SECONDS_TO_STAY)
                yield _message(chunk)
            if self.snapshot.generation != generation:
                return
        self._hold(peer, SECONDS_BETWEEN_REQUESTS)

    def _hold(self, peer: PeerID, seconds: float) -> None:
        """Keep the snapshot as long as any reader asks for it: nobody ends it for another."""
        now = time.monotonic()
        self._readers = {other: until for other, until in self._readers.items() if until > now} | {peer: now + seconds}
        self.snapshot.hold(max(self._readers.values()) - now)

    @classmethod
    def get_stub(cls, p2p: P2P, peer: PeerID, *, namespace: str | None = None) -> ReadingStub:
        """Return a stub that accepts a state as complete only with the donor's end marker."""
        return ReadingStub(super().get_stub(p2p, peer, namespace=namespace), "rpc_download_state", until_farewell)


def _message(chunk: bytes) -> averaging_pb2.DownloadData:
    return averaging_pb2.DownloadData(tensor_part=runtime_pb2.Tensor(buffer=chunk))
