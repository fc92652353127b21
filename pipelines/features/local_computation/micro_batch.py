"""How many samples a machine computes at once: measured with real gradients; `size_choice` decides."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pipelines.core.gradients.computation import ComputeGradient
from pipelines.core.run.task import Batch, TrainingTask
from pipelines.features.local_computation.size_choice import SizeChoice

LARGEST_TRIED = 256
SHARE_OF_DEVICE_MEMORY = 0.9
"""Memory beyond this share is left for fragmentation and for the averager's copies."""

SHARE_OF_FREE_RAM = 0.5


class NoMicroBatchFitsError(ValueError):
    """Not even one sample fits in memory."""


def choose_micro_batch(measure: Callable[[int], float | None], *, largest: int) -> int:
    """Return the smallest micro-batch with about the best rate; a power of two or half as much again.

    `measure(size)` returns the seconds that a micro-batch takes, or None if memory does not suffice with a margin.

    Raises:
        NoMicroBatchFitsError: not even one sample fits.
    """
    choice = SizeChoice(largest)
    while (size := choice.next_trial()) is not None:
        seconds = measure(size)
        if size == 1 and seconds is None:
            raise NoMicroBatchFitsError(
                "Not even one sample fits in the device's memory. Free memory (other programs on the device?), "
                "or use the CPU: --device cpu"
            )
        choice.note_trial(seconds)
    return choice.size


def largest_useful(target_batch_size: int) -> int:
    """Return the largest micro-batch that still lets the swarm end an epoch near its target."""
    return max(1, min(LARGEST_TRIED, target_batch_size // 8))


def trial(
    task: TrainingTask,
    backward: ComputeGradient,
    model: torch.nn.Module,
    device: str,
    usual: Callable[[], int] = lambda: 1,
) -> Callable[[int], float | None]:
    """Return a function that times one micro-batch of made-up samples with a real forward and backward pass.

    Gradients are discarded; parameters and random state are restored. `usual` returns the size that is computed without
    trying.
    """
    is_gpu = torch.device(device).type == "cuda"

    def measure(size: int) -> float | None:
        batch = task.made_up_batch(size)
        try:
            with torch.random.fork_rng([device] if is_gpu else []):
                if is_gpu:
                    return _seconds_on_gpu(backward, batch, device)
                return _seconds(backward, batch) if size <= usual() or _fits_in_ram() else None
        except torch.OutOfMemoryError:
            return None
        finally:
            model.zero_grad(set_to_none=True)
            if is_gpu:
                torch.cuda.empty_cache()

    return measure


def _seconds_on_gpu(backward: ComputeGradient, batch: Batch, device: str) -> float | None:
    backward(batch, 1.0)  # kernels are chosen and compiled on the first pass
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.synchronize(device)
    started = time.monotonic()
    backward(batch, 1.0)
    torch.cuda.synchronize(device)
    seconds = time.monotonic() - started
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    with torch.cuda.device(device):
        cap = torch.cuda.get_per_process_memory_fraction() * total
    fits = gpu_suffices(torch.cuda.max_memory_reserved(device), others=others, total=total, cap=cap)
    return seconds if fits else None


def gpu_suffices(peak: int, *, others: int, total: int, cap: float) -> bool:
    """Tell whether this process's largest memory so far fits with a margin in the GPU beside others, and in its cap."""
    return peak <= SHARE_OF_DEVICE_MEMORY * cap and peak + others <= SHARE_OF_DEVICE_MEMORY * total


def _fits_in_ram() -> bool:
    """Tell beforehand whether a larger pass fits, judged by smaller ones; it is tried where memory is not measured."""
    try:
        return ram_suffices(_peak_bytes() - _resting_bytes(), _free_bytes())
    except (ImportError, OSError):  # not Linux
        return True


def _seconds(backward: ComputeGradient, batch: Batch) -> float:
    started = time.monotonic()
    backward(batch, 1.0)
    return time.monotonic() - started


def ram_suffices(bytes_of_half_the_size: int, free_bytes: int) -> bool:
    """Tell whether twice the memory of the largest pass so far fits in the free memory with a margin."""
    return 2 * bytes_of_half_the_size <= SHARE_OF_FREE_RAM * free_bytes


def _peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resting_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
