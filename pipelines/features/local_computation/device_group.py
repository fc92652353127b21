"""Several devices as one peer: helper processes compute gradients, and this process talks to the swarm.

The process group is accelerate's (NCCL between GPUs, gloo between CPU processes). For every micro-batch the first
process broadcasts what has changed (always a new batch, parameters after a step) and receives the sum of the gradients,
so that the rest of the peer sees one device with a larger micro-batch.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, patch_environment, reduce

from pipelines.core.gradients.computation import BatchLoss, GradientComputation
from pipelines.core.run.task import Batch, num_samples

LONGEST_SILENCE = timedelta(days=30)
"""Helpers wait for the next micro-batch through rounds and pauses; when their peer dies, they exit with it."""

SECONDS_TO_LEAVE = 10.0
ORDER_BYTES = 4096
"""Size of an order as JSON."""

DTYPES = {str(dtype): dtype for dtype in (torch.int64, torch.int32, torch.float32, torch.bool)}


@dataclass(frozen=True, kw_only=True)
class Order:
    """Broadcast to every process before a micro-batch; without tensors it means stop."""

    tensors: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of each tensor of the joined batch."""

    new_parameters: bool = False
    factor: float = 0.0
    """Factor on the gradient."""


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """What every process of the group needs to build the same model on its device."""

    program: str
    """Module that a helper process runs: it builds the task's model; see `TrainingTask.device_program`."""

    run: str
    """The run's settings, as in `training_run.json`."""

    place: str
    """Repository or folder of the run."""

    device_type: str
    """`cuda`: process N uses `cuda:N`; `cpu`."""

    num_devices: int
    precision: str
    compiled: bool
    cpu_threads: int | None
    max_gpu_memory: float | None
    """See `ComputeOptions`."""

    store: str
    """File through which the processes find each other."""

    def device(self, rank: int) -> str:
        """Return the device of a process."""
        return f"cuda:{rank}" if self.device_type == "cuda" else self.device_type


class DeviceGroup:
    """The peer's side of the group. Use as a context manager; enter it after hivemind has forked its processes."""

    def __init__(self, plan: DevicePlan, model: torch.nn.Module, computation: GradientComputation) -> None:
        self._plan, self._model, self._computation = plan, model, computation
        self._helpers: list[subprocess.Popen] = []
        self._sent_versions: int | None = None

    def __enter__(self) -> "DeviceGroup":
        for rank in range(1, self._plan.num_devices):
            command = [
                sys.executable,
                "-m",
                self._plan.program,
                str(rank),
                json.dumps(asdict(self._plan)),
            ]
            self._helpers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        join_process_group(self._plan, rank=0)
        return self

    def __exit__(self, *exception: object) -> None:
        if all(helper.poll() is None for helper in self._helpers):
            send_order(Order(), self._plan.device(0))
        torch.distributed.destroy_process_group()
        for helper in self._helpers:
            try:
                helper.wait(SECONDS_TO_LEAVE)
            except subprocess.TimeoutExpired:
                helper.kill()

    def backward(self, batch: Batch, factor: float) -> BatchLoss:
        """Add `factor` times the gradient of the joined batch's mean loss to `.grad`; return that loss.

        Raises:
            RuntimeError: a helper process has died.
        """
        for rank, helper in enumerate(self._helpers, start=1):
            if helper.poll() is not None:
                raise RuntimeError(
                    f"The process for device {rank} exited with code {helper.returncode}; its message is above. If "
                    "memory ran out, choose a smaller --micro-batch-size; otherwise try --num-devices 1."
                )
        device = self._plan.device(0)
        versions = sum(parameter._version for parameter in self._model.parameters())
        joined = {name: tensor.to(device).contiguous() for name, tensor in batch.items()}
        tensors = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in joined.items()}
        send_order(Order(tensors=tensors, new_parameters=versions != self._sent_versions, factor=factor), device)
        if versions != self._sent_versions:
            broadcast([parameter.detach() for parameter in self._model.parameters()])
            self._sent_versions = sum(parameter._version for parameter in self._model.parameters())
        broadcast(list(joined.values()))
        return compute_share(self._computation, self._model, joined, factor)


def join_process_group(plan: DevicePlan, rank: int) -> PartialState:
    """Join the group as process `rank`; returns when all have joined."""
    place = dict(rank=rank, local_rank=rank, world_size=plan.num_devices, local_world_size=plan.num_devices)
    with patch_environment(**place, omp_num_threads=plan.cpu_threads or 1):
        return PartialState(
            cpu=plan.device_type == "cpu",
            init_method=Path(plan.store).as_uri(),
            rank=rank,
            world_size=plan.num_devices,
            timeout=LONGEST_SILENCE,
        )


def compute_share(computation: GradientComputation, model: torch.nn.Module, joined: Batch, factor: float) -> BatchLoss:
    """Compute this process's part of the joined batch; leave the whole batch's gradient in `.grad`, return its loss."""
    state, total = PartialState(), num_samples(joined)
    parts = {name: tensor.tensor_split(state.num_processes) for name, tensor in joined.items()}
    own = {name: tensors[state.process_index] for name, tensors in parts.items()}
    loss, weight = computation.loss(own) if total > state.process_index else (torch.zeros(()), 0)
    sums = torch.tensor([loss.item(), weight], dtype=torch.float64, device=state.device)
    total_loss, total_weight = reduce(sums, reduction="sum").tolist()
    if weight:
        (loss * (factor / total_weight)).backward()
    for parameter in model.parameters():
        mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = reduce(mine, reduction="sum")
    return BatchLoss(mean=total_loss / total_weight, weight=int(total_weight))


def serve(model: torch.nn.Module, computation: GradientComputation) -> None:
    """Compute shares until the peer says to stop."""
    device = PartialState().device
    while (order := receive_order(device)).tensors:
        if order.new_parameters:
            with torch.no_grad():
                broadcast([parameter.detach() for parameter in model.parameters()])
        empty = [torch.zeros(shape, dtype=DTYPES[dtype], device=device) for shape, dtype in order.tensors.values()]
        joined = dict(zip(order.tensors, broadcast(empty), strict=True))
        compute_share(computation, model, joined, order.factor)
        model.zero_grad(set_to_none=True)


def send_order(order: Order, device: str) -> None:
    """Broadcast the next order to all processes."""
    text = json.dumps(asdict(order)).encode().ljust(ORDER_BYTES)
    broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device))


def receive_order(device: torch.device) -> Order:
    """Return the order from the first process."""
    text = broadcast(torch.zeros(ORDER_BYTES, dtype=torch.uint8, device=device))
    return Order(**json.loads(bytes(text.cpu().tolist())))


@contextlib.contextmanager
def meeting_place() -> Iterator[str]:
    """Yield the path of a file, not yet created, through which the group's processes find each other."""
    with tempfile.TemporaryDirectory(prefix="dalle-collab-devices-") as folder:
        yield str(Path(folder) / "store")
