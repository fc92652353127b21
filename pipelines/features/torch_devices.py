"""The torch devices of this machine: the one that a person named, checked, and their names for people."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from pipelines.core.run.compute_options import ComputeOptions

MAX_DESCRIPTION_CHARACTERS = 64
CONTROL_GROUP = Path("/sys/fs/cgroup")


def torch_device(name: str) -> str:
    """Return the device that `auto`, or a torch device's name, means here; ValueError if there is none."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"There is no device {name!r}. Expected auto, cpu, cuda or cuda:N.") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Device {name} was asked for, but torch sees no GPU here. Use cpu.")
    return name


def torch_devices(names: str) -> tuple[str, ...]:
    """Return the devices of a list such as `cuda:0,cuda:1`; `auto`: all GPUs, else the CPU. ValueError for others."""
    if names == "auto" and torch.cuda.is_available():
        return tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
    return tuple(torch_device(name.strip()) for name in names.split(","))


def with_devices(compute: ComputeOptions) -> ComputeOptions:
    """Return the options with the devices of this machine in place of `auto`: all GPUs, unless one is named."""
    device = torch_device(compute.device)
    return dataclasses.replace(
        compute,
        device=device,
        num_devices=compute.num_devices or (torch.cuda.device_count() if device == "cuda" else 1),
    )


def wanted_threads(cpu_threads: int | None, environment: Mapping[str, str]) -> int | None:
    """Return with how many threads to compute on the CPU: as many as the person said, else OMP_NUM_THREADS, else None.

    OMP_NUM_THREADS may be a list, one number for each level of nesting: the first counts. A value that OpenMP itself
    would pass over, such as `all`, is passed over here too.
    """
    if cpu_threads is not None:
        return cpu_threads
    outermost = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(outermost) if outermost.isdecimal() and int(outermost) > 0 else None


def num_cores(control_group: Path = CONTROL_GROUP) -> int:
    """Return how many cores this process may use: those of its affinity, or the time of fewer in a container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = _allowed_time(control_group)
    return cores if allowed >= cores else math.ceil(allowed)


def _allowed_time(control_group: Path) -> float:
    """Return how many cores' time a container has (`docker run --cpus`): control groups version 2, or version 1."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            texts = [(control_group / name).read_text(encoding="ascii") for name in names]
            time, period = (int(word) for word in " ".join(texts).split())  # the word for no limit is `max`, or -1
            if time > 0 and period > 0:
                return time / period
    return math.inf


def describe_device(device: str, num_devices: int = 1) -> str:
    """Return the name of a torch device: `2 x NVIDIA T4`, or `CPU, 4 threads`."""
    kind = torch.device(device)
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else kind.type.upper()
    if kind.type == "cpu":
        num_threads = torch.get_num_threads()
        name += f", {num_threads} thread{'' if num_threads == 1 else 's'}"
    return (f"{num_devices} x {name}" if num_devices > 1 else name)[:MAX_DESCRIPTION_CHARACTERS]
