"""What optimizers keep for each parameter: in float32, or in 8 bits, block by block (Dettmers et al., 2021).

On a CPU the bits are those of bitsandbytes 0.50, which takes four times as long (7.5 against 1.8 ns a value, on one
thread of an AMD EPYC) and starts threads of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from bitsandbytes import functional as quantization
from torch import Tensor

BLOCK_SIZE = 256
MIN_8BIT_ELEMENTS = 4096
"""Statistics of smaller tensors stay in float32: they cost little and are the most sensitive."""

NUM_STEPS = 2**16
"""Values from -1 to 1 that are told apart on a CPU before the nearest level is looked up."""

State = dict[str, Tensor]


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


def read_statistic(state: State, statistic: Statistic, span: slice) -> Tensor:
    """Return float32 values of the span: a view for float32 statistics, a copy for quantised ones.

    A span starts at a block, and ends at one or at the end of the statistic.
    """
    name, values = statistic.name, state[statistic.name][span]
    if values.dtype == torch.float32:
        return values
    absmax, levels = state[f"{name}_absmax"][_blocks(span)], _levels(statistic.is_signed, values.device)
    if values.device.type != "cpu":
        return quantization.dequantize_blockwise(values, absmax=absmax, code=levels, blocksize=BLOCK_SIZE)
    read = torch.index_select(levels, 0, _whole_blocks(values).int()).view(-1, BLOCK_SIZE)
    return read.mul_(absmax[:, None]).view(-1)[: len(values)]


def write_statistic(state: State, statistic: Statistic, span: slice, values: Tensor) -> None:
    """Keep float32 values of the span."""
    name = statistic.name
    if state[name].dtype == torch.float32:
        return  # `values` is a view of the state
    kept, absmax = state[name][span], state[f"{name}_absmax"][_blocks(span)]
    if values.device.type == "cpu":
        _quantise(values, _level_of_step(statistic.is_signed), kept, absmax)
        return
    levels = _levels(statistic.is_signed, values.device)
    quantised, quant_state = quantization.quantize_blockwise(values, code=levels, blocksize=BLOCK_SIZE)
    kept.copy_(quantised)
    absmax.copy_(quant_state.absmax)


def _quantise(values: Tensor, level_of_step: Tensor, kept: Tensor, absmax: Tensor) -> None:
    """Write the level of each value (uint8) and the largest magnitude of each block (float32)."""
    blocks = _whole_blocks(values).view(-1, BLOCK_SIZE)
    torch.amax(blocks.abs(), dim=1, out=absmax)
    steps = blocks.mul(absmax.reciprocal()[:, None]).clamp_(-1.0, 1.0).add_(1.0)
    # `add` with a factor rounds once, as bitsandbytes does. In a block of zeros the steps are not numbers: whatever
    # they become as integers, no more than 16 bits of it count.
    places = torch.add(torch.tensor(0.5), steps, alpha=(NUM_STEPS - 1) / 2).int().bitwise_and_(NUM_STEPS - 1)
    torch.index_select(level_of_step, 0, places.view(-1)[: len(kept)], out=kept)


def _whole_blocks(values: Tensor) -> Tensor:
    missing = -len(values) % BLOCK_SIZE
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def _blocks(span: slice) -> slice:
    return slice(span.start // BLOCK_SIZE, -(-span.stop // BLOCK_SIZE))


@cache
def _levels(is_signed: bool, device: torch.device) -> Tensor:
    """Return the 256 values of the dynamic 8-bit type."""
    return quantization.create_dynamic_map(signed=is_signed).to(device)


@cache
def _level_of_step(is_signed: bool) -> Tensor:
    """Return the index of the level that is nearest to each step: (steps) uint8."""
    levels = _levels(is_signed, torch.device("cpu"))
    steps = torch.arange(NUM_STEPS, device="cpu").float() / (NUM_STEPS - 1) * 2 - 1
    return torch.bucketize(steps, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)
