"""Float32 values as 8-bit levels with a scale for each block of them (Dettmers et al., 2021), equal on all processors:
parts on the wire, and what optimizers keep for each parameter.

But for rounding, levels and indices are those of bitsandbytes 0.50, which takes several times as long on a CPU, and
whose last bits depend on the processor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

NUM_STEPS = 2**16
"""Values from -1 to 1 that are told apart before the nearest level is looked up."""

LEAST_SCALE = 2.0**-112
"""Blocks without a larger value count as 0: what they would be divided by is not finite in float32."""

BLOCK_SIZE = 256
MIN_8BIT_ELEMENTS = 4096
"""Statistics of smaller tensors stay in float32: they cost little and are the most sensitive."""

State = dict[str, Tensor]


@cache
def levels(is_signed: bool, device: torch.device | None = None) -> Tensor:
    """The 256 levels of the dynamic map (section 2.2 there), float32: in each decade from 1e-6 on twice as many as in
    the one before, at equal distances, twice as many without a sign; and 0 and 1.
    """
    found = [0.0, 1.0]
    for number, largest in enumerate((1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)):
        bounds = np.linspace(0.1, 1.0, 2 ** (number + (not is_signed)) + 1)
        means = largest * (bounds[:-1] + bounds[1:]) / 2
        found += [*means, *-means] if is_signed else [*means]
    return torch.from_numpy(np.sort(np.array(found, np.float32))).to(device or "cpu")


def quantise(values: Tensor, block_size: int, is_signed: bool, kept: Tensor, scales: Tensor) -> None:
    """Write the index of each value's level, (number,) uint8, and each block's largest magnitude, (block,) float32.

    Values are finite float32 on the CPU, and not negative unless `is_signed`.
    """
    blocks = _whole_blocks(values, block_size).view(-1, block_size)
    torch.amax(blocks.abs() if is_signed else blocks, dim=1, out=scales)
    scales.mul_(scales >= LEAST_SCALE)
    half = (NUM_STEPS - 1) / 2
    steps = blocks * (half / scales.clamp(min=LEAST_SCALE))[:, None]
    places = steps.add_(half + 0.5).int().view(-1)[: len(kept)]
    torch.index_select(_level_of_step(is_signed), 0, places, out=kept)


def dequantise(indices: Tensor, block_size: int, is_signed: bool, scales: Tensor) -> Tensor:
    """Return the values of the levels: (number,) float32."""
    read = torch.index_select(levels(is_signed), 0, _whole_blocks(indices, block_size).int())
    return read.view(-1, block_size).mul_(scales[:, None]).view(-1)[: len(indices)]


def _whole_blocks(values: Tensor, block_size: int) -> Tensor:
    missing = -len(values) % block_size
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


@cache
def _level_of_step(is_signed: bool) -> Tensor:
    """Return the index of the level that is nearest to each step: (steps) uint8."""
    steps = torch.arange(NUM_STEPS, device="cpu").float() / (NUM_STEPS - 1) * 2 - 1
    return torch.bucketize(steps, (levels(is_signed)[1:] + levels(is_signed)[:-1]) / 2).to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """What an optimizer declares of a value that it keeps for each parameter."""

    name: str
    """That of its tensor in the state."""

    is_signed: bool
    """Whether it may be negative; what never is has twice the levels in 8 bits."""


def initial_state(parameter: Tensor, bits: int, statistics: Sequence[Statistic]) -> State:
    """Return these statistics, all 0, and the number of steps."""
    state = {"step": torch.zeros((), dtype=torch.int64)}
    for name in (statistic.name for statistic in statistics):
        size, device = parameter.numel(), parameter.device
        if bits == 32 or size < MIN_8BIT_ELEMENTS:
            state[name] = torch.zeros(size, device=device)
        else:
            state[name] = torch.zeros(size, dtype=torch.uint8, device=device)
            state[f"{name}_absmax"] = torch.zeros(-(-size // BLOCK_SIZE), device=device)
    return state


def read_statistic(state: State, statistic: Statistic, span: slice, factor: float = 1.0) -> Tensor:
    """Return float32 values of the span times a factor: a view for float32 statistics, which change, or a copy.

    A span starts at a block, and ends at one or at the end of the statistic.
    """
    name, values = statistic.name, state[statistic.name][span]
    if values.dtype == torch.float32:
        return values if factor == 1.0 else values.mul_(factor)
    absmax = state[f"{name}_absmax"][_blocks(span)] * factor
    if values.device.type == "cpu":
        return dequantise(values, BLOCK_SIZE, statistic.is_signed, absmax)
    from bitsandbytes import functional as quantization  # a second; a CPU needs none of it

    code = levels(statistic.is_signed, values.device)
    return quantization.dequantize_blockwise(values, absmax=absmax, code=code, blocksize=BLOCK_SIZE)


def write_statistic(state: State, statistic: Statistic, span: slice, values: Tensor) -> None:
    """Keep float32 values of the span."""
    name = statistic.name
    if state[name].dtype == torch.float32:
        return  # `values` is a view of the state
    kept, absmax = state[name][span], state[f"{name}_absmax"][_blocks(span)]
    if values.device.type == "cpu":
        quantise(values, BLOCK_SIZE, statistic.is_signed, kept, absmax)
        return
    from bitsandbytes import functional as quantization

    code = levels(statistic.is_signed, values.device)
    quantised, quant_state = quantization.quantize_blockwise(values, code=code, blocksize=BLOCK_SIZE)
    kept.copy_(quantised)
    absmax.copy_(quant_state.absmax)


def _blocks(span: slice) -> slice:
    return slice(span.start // BLOCK_SIZE, -(-span.stop // BLOCK_SIZE))
