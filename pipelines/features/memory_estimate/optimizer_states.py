"""Bytes of optimizer statistics, tensor by tensor."""

import math
from collections.abc import Mapping

from pipelines.features.memory_estimate.settings import NUM_STATISTICS, MemorySettings

BLOCK_SIZE = 256
MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors keep float32 statistics; bitsandbytes and our LAMB agree on both numbers."""

Shapes = Mapping[tuple[int, ...], int]
"""How many parameters of every shape there are."""


def count_elements(shapes: Shapes) -> int:
    """Return the number of values."""
    return sum(number * math.prod(shape) for shape, number in shapes.items())


def optimizer_state_bytes(shapes: Shapes, settings: MemorySettings, vocab_size: int) -> int:
    """Return the bytes of the optimizer's statistics for parameters of these shapes."""
    return sum(number * _tensor_state_bytes(shape, settings, vocab_size) for shape, number in shapes.items())


def _tensor_state_bytes(shape: tuple[int, ...], settings: MemorySettings, vocab_size: int) -> int:
    size = math.prod(shape)
    if settings.optimizer == "adafactor":
        # Shazeer and Stern, 2018: sums over columns and over rows of the squared gradient; vectors are not factored.
        return 4 * (size if len(shape) < 2 else size // shape[-1] + size // shape[-2])
    is_muons = settings.optimizer == "muon" and len(shape) == 2 and vocab_size not in shape
    number = 1 if is_muons else NUM_STATISTICS[settings.optimizer]
    if settings.optimizer_bits == 8 and size >= MIN_8BIT_ELEMENTS:
        # Statistics of one byte, each with a float32 maximum for every block (Dettmers et al., 2021).
        return number * (size + 4 * -(-size // BLOCK_SIZE))
    bits = 32 if settings.optimizer_bits == 8 else settings.optimizer_bits
    return number * size * bits // 8
