"""Float32 values as 8-bit levels with a scale for each block of them (Dettmers et al., 2021), equal on all processors.

But for rounding, levels and indices are those of bitsandbytes 0.50, which takes several times as long on a CPU, and
whose last bits depend on the processor.
"""

from functools import cache

import numpy as np
import torch

NUM_STEPS = 2**16
"""Values from -1 to 1 that are told apart before the nearest level is looked up."""

LEAST_SCALE = 2.0**-112
"""Blocks without a larger value count as 0: what they would be divided by is not finite in float32."""


@cache
def levels(is_signed: bool, device: torch.device | None = None) -> torch.Tensor:
    """The 256 levels of the dynamic map (section 2.2 there), float32: in each decade from 1e-6 on twice as many as in
    the one before, at equal distances, twice as many without a sign; and 0 and 1.
    """
    found = [0.0, 1.0]
    for number, largest in enumerate((1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)):
        bounds = np.linspace(0.1, 1.0, 2 ** (number + (not is_signed)) + 1)
        means = largest * (bounds[:-1] + bounds[1:]) / 2
        found += [*means, *-means] if is_signed else [*means]
    return torch.from_numpy(np.sort(np.array(found, np.float32))).to(device or "cpu")


def quantise(values: torch.Tensor, block_size: int, is_signed: bool, kept: torch.Tensor, scales: torch.Tensor) -> None:
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


def dequantise(indices: torch.Tensor, block_size: int, is_signed: bool, scales: torch.Tensor) -> torch.Tensor:
    """Return the values of the levels: (number,) float32."""
    read = torch.index_select(levels(is_signed), 0, _whole_blocks(indices, block_size).int())
    return read.view(-1, block_size).mul_(scales[:, None]).view(-1)[: len(indices)]


def _whole_blocks(values: torch.Tensor, block_size: int) -> torch.Tensor:
    missing = -len(values) % block_size
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


@cache
def _level_of_step(is_signed: bool) -> torch.Tensor:
    """Return the index of the level that is nearest to each step: (steps) uint8."""
    steps = torch.arange(NUM_STEPS, device="cpu").float() / (NUM_STEPS - 1) * 2 - 1
    return torch.bucketize(steps, (levels(is_signed)[1:] + levels(is_signed)[:-1]) / 2).to(torch.uint8)
