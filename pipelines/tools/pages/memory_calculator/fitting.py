"""What fits where: machines, the search for a configuration that fits, and the resulting command."""

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.features.memory_estimate.estimate import count_parameters, estimate_training_memory
from pipelines.features.memory_estimate.model_presets import MODEL_PRESETS, ModelSizes
from pipelines.features.memory_estimate.settings import MemoryEstimate, MemorySettings

GPU_RESERVE = 0.8e9
"""Bytes used by the CUDA context and the libraries' workspaces before the first tensor."""

GPU_SHARE = 0.95
"""Share of a GPU's memory that tensors can use before allocator fragmentation exhausts it."""

RAM_RESERVE = 3e9
"""Bytes of the operating system, the interpreters of a peer's processes and the data stream."""


@dataclass(frozen=True, kw_only=True)
class MemoryPreset:
    """A GPU and the RAM of the machine it usually comes in."""

    name: str
    gpu_bytes: float
    ram_bytes: float

    def has_room_for(self, estimate: MemoryEstimate) -> bool:
        """Return whether both memories suffice."""
        return self.has_gpu_for(estimate) and self.has_ram_for(estimate)

    def has_gpu_for(self, estimate: MemoryEstimate) -> bool:
        """Return whether the GPU's memory suffices; always true for a step that needs none."""
        return estimate.gpu.total == 0 or estimate.gpu.total <= self.gpu_bytes * GPU_SHARE - GPU_RESERVE

    def has_ram_for(self, estimate: MemoryEstimate) -> bool:
        """Return whether the machine's memory suffices."""
        return estimate.ram.total <= self.ram_bytes - RAM_RESERVE


MACHINES = (
    MemoryPreset(name="Laptop (8 GB GPU)", gpu_bytes=8 * 2**30, ram_bytes=16 * 2**30),
    MemoryPreset(name="T4 (Colab)", gpu_bytes=15 * 2**30, ram_bytes=12.7 * 2**30),
    MemoryPreset(name="P100 (Kaggle)", gpu_bytes=16 * 2**30, ram_bytes=29 * 2**30),
    MemoryPreset(name="V100 16 GB", gpu_bytes=16 * 2**30, ram_bytes=61 * 2**30),
    MemoryPreset(name="A100 40 GB", gpu_bytes=40 * 2**30, ram_bytes=83 * 2**30),
    MemoryPreset(name="H200", gpu_bytes=141e9, ram_bytes=256 * 2**30),
)

RECOMPUTE_COST = {"none": 1.0, "partial": 1.17, "checkpoint": 1.33, "reversible": 1.33}
"""Time of a step relative to one that stores everything: one more forward pass is a third of forward and backward."""

OFFLOAD_COST = 1.1
"""Moving gradients and parameters over the bus once per step of several micro-batches."""

HALVING_COST = 1.08
"""A micro-batch half as large uses the device a little less efficiently."""

SWITCH_COST = 1.001
"""Of two equally fast settings, prefer the one closer to the requested one."""


def largest_micro_batch(model: ModelSizes, settings: MemorySettings, machine: MemoryPreset, *, most: int = 1024) -> int:
    """Return the largest micro-batch that fits, up to `most`; 0 if not even one sample does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        estimate = estimate_training_memory(model, settings.replace(micro_batch_size=middle))
        low, high = (middle, high) if machine.has_room_for(estimate) else (low, middle - 1)
    return low


def find_fitting(model: ModelSizes, settings: MemorySettings, machine: MemoryPreset) -> MemorySettings | None:
    """Return the settings closest in speed to the requested ones that fit the machine; None if none does.

    Only settings that leave the result of training unchanged are varied: precision of products, recomputation, bits
    of the statistics, offload, and the micro-batch, for which gradient accumulation makes up.
    """
    for _, candidate in sorted(_candidates(model, settings), key=lambda pair: pair[0]):
        if machine.has_room_for(estimate_training_memory(model, candidate)):
            return candidate
    return None


def least_needed(model: ModelSizes, settings: MemorySettings) -> tuple[float, float]:
    """Return the least bytes of GPU into which settings with the same result fit, and the RAM that they take."""
    estimates = [estimate_training_memory(model, candidate) for _, candidate in _candidates(model, settings)]
    least = min(estimates, key=lambda one: (one.gpu.total, one.ram.total))
    return (least.gpu.total + GPU_RESERVE) / GPU_SHARE, least.ram.total + RAM_RESERVE


def smaller_models(model: ModelSizes) -> Iterator[tuple[str, ModelSizes]]:
    """Yield the named models of the same kind with fewer parameters, largest first."""
    kind, most = model.values.get("model_type"), count_parameters(model)
    named = [(count_parameters(sizes), name, sizes) for name, sizes in MODEL_PRESETS.items()]
    for number, name, sizes in sorted(named, key=lambda one: one[0], reverse=True):
        if sizes.values["model_type"] == kind and number < most:
            yield name, sizes


def _candidates(model: ModelSizes, settings: MemorySettings) -> Iterator[tuple[float, MemorySettings]]:
    ways = ("none", "partial", "reversible") if model.is_ours else ("none", "checkpoint")
    precisions = dict.fromkeys((settings.precision, "fp16") if settings.precision == "fp32" else (settings.precision,))
    bits = dict.fromkeys((settings.optimizer_bits, min(settings.optimizer_bits, 8)))
    offloads = dict.fromkeys((settings.offload_optimizer, True))
    for way, precision, bit, offload in itertools.product(
        dict.fromkeys((settings.recompute, *ways)), precisions, bits, offloads
    ):
        switched = settings.replace(recompute=way, precision=precision, optimizer_bits=bit, offload_optimizer=offload)
        cost = RECOMPUTE_COST[way] * (OFFLOAD_COST if switched.keeps_optimizer_in_ram else 1.0)
        cost *= SWITCH_COST ** ((precision != settings.precision) + (bit != settings.optimizer_bits))
        size = settings.micro_batch_size
        while size >= 1:
            yield cost, switched.replace(micro_batch_size=size)
            cost *= HALVING_COST
            size //= 2


def join_command(settings: MemorySettings, run: str = "ORG/RUN") -> str:
    """Return the command with which a volunteer joins `run` with these settings."""
    words = ["dalle-collab", "join", run, "--micro-batch-size", str(settings.micro_batch_size)]
    words += ["--device", settings.device]
    return shlex.join(words)
