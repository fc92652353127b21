"""What this machine has: reads limits, memory and disks, without judging them."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from hub_tools.processes.open_files import open_files_limit
from pipelines.core.run.compute_options import GIBIBYTE

SHARED_MEMORY = Path("/dev/shm")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of a machine, in bytes unless noted."""

    python: str
    """Version of Python, such as `3.11.7`."""

    platform: str
    """`sys.platform`."""

    open_files: int
    """Files that a process may open: the hard limit, to which a peer raises its own."""

    free_shared_memory: int | None
    """Free bytes of /dev/shm, in which hivemind keeps parameters; None where there is no such folder."""

    available_memory: int | None
    """Memory that this process can still get, within its control group; None if unknown."""

    free_gpu_memory: int | None
    """Free bytes of the device to use, or fewer if a peer is to take no more; None on a CPU."""

    cache_folder: Path
    """Folder of the Hub's cache, where checkpoints are downloaded."""

    free_disk: int
    """Free bytes in the cache folder."""


def read_machine(device: str = "cpu", max_gpu_memory: float | None = None) -> Machine:
    """Measure this machine; `device` is a torch device, of which a peer takes at most `max_gpu_memory` GiB."""
    cache = cache_folder()
    return Machine(
        python=".".join(map(str, sys.version_info[:3])),
        platform=sys.platform,
        open_files=open_files_limit(),
        free_shared_memory=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        available_memory=available_memory(),
        free_gpu_memory=capped(free_gpu_memory(device), max_gpu_memory),
        cache_folder=cache,
        free_disk=shutil.disk_usage(nearest_folder(cache)).free,
    )


def available_memory() -> int | None:
    """Return the bytes of memory that this process can still get, or None if unknown."""
    limits = [_system_memory(), _control_group_memory(), _address_space()]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def free_gpu_memory(device: str) -> int | None:
    """Return the free bytes of a CUDA device; None for a CPU."""
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.mem_get_info(torch.device(device))[0]


def capped(free: int | None, gibibytes: float | None) -> int | None:
    """Return the free bytes of a GPU of which a peer takes at most so many GiB."""
    return free if free is None or gibibytes is None else min(free, int(gibibytes * GIBIBYTE))


def cache_folder() -> Path:
    """Return the folder where the Hub's client downloads to."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def nearest_folder(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def _system_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None


def _control_group_memory() -> int | None:
    """Return the memory left in a container: control groups version 2, or version 1."""
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, used = ((CGROUP / name).read_text(encoding="ascii").strip() for name in (limit, usage))
        except OSError:
            continue
        if most.isdigit():
            return max(0, int(most) - int(used))
    return None


def _address_space() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(0, soft - pages * os.sysconf("SC_PAGE_SIZE"))
