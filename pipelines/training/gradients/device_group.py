"""Several devices that are one peer: helper processes compute gradients, and this process speaks with the swarm.

The process group is accelerate's (NCCL between GPUs, gloo between CPU processes). For every micro-batch the first
process hands out what has changed (a new batch always, parameters after a step) and receives the sum of the gradients,
so that the rest of the peer sees one device with a larger micro-batch.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, patch_environment, reduce

from pipelines.training.gradients.computation import GradientComputation, Samples

LONGEST_SILENCE = timedelta(days=30)
"""Helpers wait for the next micro-batch through rounds and pauses; when their peer dies they end with it."""

SECONDS_TO_LEAVE = 10.0
STOP = 0


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """What every process of the group must know to build the same model on its device."""

    model_config: dict[str, object]
    device_type: str
    """`cuda`: process N uses `cuda:N`; `cpu`."""

    num_devices: int
    precision: str
    compiled: bool
    cpu_threads: int | None
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
                "pipelines.training.gradients.helper",
                str(rank),
                json.dumps(asdict(self._plan)),
            ]
            self._helpers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        join_process_group(self._plan, rank=0)
        return self

    def __exit__(self, *exception: object) -> None:
        if all(helper.poll() is None for helper in self._helpers):
            self._announce(STOP, new_parameters=False, factor=0.0)
        torch.distributed.destroy_process_group()
        for helper in self._helpers:
            try:
                helper.wait(SECONDS_TO_LEAVE)
            except subprocess.TimeoutExpired:
                helper.kill()

    def backward(self, batch: Samples, factor: float) -> float:
        """Add `factor` times the gradient of the joined batch's mean loss to `.grad`; return that loss.

        Raises:
            RuntimeError: a helper process has died.
        """
        for rank, helper in enumerate(self._helpers, start=1):
            if helper.poll() is not None:
                raise RuntimeError(
                    f"The process for device {rank} has ended with code {helper.returncode}; its message is above. If "
                    "memory ran out, choose a smaller --micro-batch-size; otherwise try --num-devices 1."
                )
        versions = sum(parameter._version for parameter in self._model.parameters())
        self._announce(len(batch[0]), new_parameters=versions != self._sent_versions, factor=factor)
        if versions != self._sent_versions:
            broadcast([parameter.detach() for parameter in self._model.parameters()])
            self._sent_versions = sum(parameter._version for parameter in self._model.parameters())
        joined = tuple(tensor.to(self._plan.device(0)).contiguous() for tensor in batch)
        broadcast(joined)
        return compute_share(self._computation, self._model, joined, factor)

    def _announce(self, batch_size: int, *, new_parameters: bool, factor: float) -> None:
        broadcast(_order(batch_size, new_parameters, factor).to(self._plan.device(0)))


def join_process_group(plan: DevicePlan, rank: int) -> PartialState:
    """Enter the group as process `rank`; returns when all are there."""
    place = dict(rank=rank, local_rank=rank, world_size=plan.num_devices, local_world_size=plan.num_devices)
    with patch_environment(**place, omp_num_threads=plan.cpu_threads or 1):
        return PartialState(
            cpu=plan.device_type == "cpu",
            init_method=Path(plan.store).as_uri(),
            rank=rank,
            world_size=plan.num_devices,
            timeout=LONGEST_SILENCE,
        )


def compute_share(computation: GradientComputation, model: torch.nn.Module, joined: Samples, factor: float) -> float:
    """Compute this process's part of the joined batch; leave the whole batch's gradient in `.grad`, return its loss."""
    state, total = PartialState(), len(joined[0])
    own = tuple(tensor.tensor_split(state.num_processes)[state.process_index] for tensor in joined)
    share, loss = len(own[0]) / total, 0.0
    if len(own[0]):
        loss = computation.backward(own, factor * share)
    for parameter in model.parameters():
        mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = reduce(mine, reduction="sum")
    return reduce(torch.tensor(loss * share, device=state.device), reduction="sum").item()


def serve(model: torch.nn.Module, computation: GradientComputation, layout: Sequence[int]) -> None:
    """Compute shares until the peer says stop; `layout` are the lengths of a sample's text and image sequences."""
    device = PartialState().device
    while True:
        batch_size, new_parameters, factor = broadcast(_order(0, False, 0.0).to(device)).tolist()
        if int(batch_size) == STOP:
            return
        if new_parameters:
            with torch.no_grad():
                broadcast([parameter.detach() for parameter in model.parameters()])
        shapes = [(int(batch_size), length) for length in layout]
        joined = tuple(broadcast([torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes]))
        compute_share(computation, model, joined, factor)
        model.zero_grad(set_to_none=True)


@contextlib.contextmanager
def meeting_place():  # noqa: ANN201
    """Yield the path of a file, not yet there, through which the group's processes find each other."""
    with tempfile.TemporaryDirectory(prefix="dalle-collab-devices-") as folder:
        yield str(Path(folder) / "store")


def _order(batch_size: int, new_parameters: bool, factor: float) -> torch.Tensor:
    """What every process is told before a micro-batch: samples in the joined batch, news, factor of the loss."""
    return torch.tensor([batch_size, new_parameters, factor], dtype=torch.float64)
