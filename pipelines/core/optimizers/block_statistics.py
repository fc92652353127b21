"""What optimizers keep for each parameter: in float32, or in 8 bits, block by block."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.core.block_quantisation import dequantise, levels, quantise

BLOCK_SIZE = 256
MIN_8BIT_ELEMENTS = 4096
"""Statistics of smaller tensors stay in float32: they cost little and are the most sensitive."""

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
