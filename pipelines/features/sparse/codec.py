"""Sparse progress as bytes: one byte string for each value, and a reader that believes nothing.

    mark          4 bytes, with the version
    samples       uint64, little-endian: of how many samples the progress is, 1 or more
    levels        two float32 for each tensor, little-endian: the magnitudes low <= high
    codes         2 bits for each value sent, in order
    remainders    the gap to the index before, modulo 2**bits: for each value of a matrix in so many bits, then for each
                  value of a vector, in another number of bits (`SparseCodec.rice_bits`)
    quotients     for each value the gap divided by 2**bits, as so many 0 and a 1; filled up to a byte with 0

Shapes, chunk and k are the receiver's own. Gaps of random indices are distributed geometrically, for which this code
(Golomb, 1966; Rice, 1979) is the best of those with whole bits: 2 % above log2 of the number of choices.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipelines.core.equal_arithmetic import power
from pipelines.features.sparse.layout import ChunkLayout
from pipelines.features.sparse.selection import HIGH, NEGATIVE, largest, quantised

MARK = b"SPG\x02"
"""Version 1 did not say of how many samples the progress is."""

SAMPLES = struct.Struct("<Q")
MOST_SAMPLES = 2**48
"""Sums over all peers stay exact in float64."""

LEVELS_START = len(MARK) + SAMPLES.size
LEVEL_TYPE = np.dtype("<f4")
CODE_BITS = 2
LARGEST_LEVEL = 2.0**32
"""Progress of more is taken for broken: sums over all peers, and squares in 64 bits, stay finite."""


@dataclass(frozen=True, eq=False)
class SparseUpdate:
    """What one peer sends in a round. Arrays are read-only; 3 bytes for each value sent."""

    num_samples: int
    """Of how many samples the progress is, as the peer says: 1 to `MOST_SAMPLES`."""

    levels: np.ndarray
    """Magnitudes low and high: (num_tensors, 2) float32."""

    codes: np.ndarray
    """Sign and level of each value sent, see `selection`: (num_sent,) uint8."""

    indices: np.ndarray
    """The value's index in its chunk, ascending in each: (num_sent,) uint16."""

    norm: float
    """L2 norm of the values sent, the same on every machine."""

    digest: bytes
    """SHA-256 of the bytes."""


class SparseCodec:
    """Codec of tensors of these shapes: `k` of every `chunk` values are sent, those of largest magnitude."""

    def __init__(self, shapes: Sequence[Sequence[int]], chunk: int = 4096, k: int = 64) -> None:
        """Raise ValueError if a setting or a shape is out of its range."""
        self.layout = ChunkLayout(shapes, chunk, k)
        self.rice_bits = _best_rice_bits(k / chunk), _best_rice_bits(self.layout.k_of_vectors / chunk)
        """Bits of a gap's remainder, in matrices and in vectors."""

        self._head = LEVELS_START + 2 * LEVEL_TYPE.itemsize * len(self.layout.shapes)
        widths = np.where(self.layout.is_chunk_of_vector, *self.rice_bits[::-1])
        fixed = int((self.layout.chunk_counts * (CODE_BITS + widths + 1)).sum())
        zeros = int(((self.layout.chunk_sizes - self.layout.chunk_counts) >> widths).sum())
        self.least_bytes = self._head + _bytes_of(fixed)
        self.most_bytes = self._head + _bytes_of(fixed + zeros)
        """No message is longer: a receiver need not take more."""

    def encode(self, tensors: Sequence[torch.Tensor], num_samples: int) -> bytes:
        """Return the bytes of the largest values of the progress of so many samples; float32 on the CPU.

        Raises:
            ValueError: the shapes are others, a value is not finite or too large, or there are no samples.
        """
        self.layout.check_shapes(tensors)
        _check_samples(num_samples)
        levels, codes, indices = [], [], []
        for tensor, k in zip(tensors, self.layout.tensor_k, strict=True):
            own_indices, values = largest(tensor, self.layout.chunk, k)
            if not np.all(np.abs(values) <= LARGEST_LEVEL):
                raise ValueError(f"A value to send is not finite or above {LARGEST_LEVEL:.3g}; nothing is sent.")
            own_levels, own_codes = quantised(values)
            levels.append(own_levels)
            codes.append(own_codes)
            indices.append(own_indices)
        all_codes, all_indices = np.concatenate(codes), np.concatenate(indices)
        bits = np.concatenate((_bits_of(all_codes, CODE_BITS), self._bits_of_indices(all_indices)))
        return (
            MARK
            + SAMPLES.pack(num_samples)
            + np.stack(levels).astype(LEVEL_TYPE).tobytes()
            + np.packbits(bits).tobytes()
        )

    def decode(self, payload: bytes) -> SparseUpdate:
        """Return what the bytes say. Memory is bounded by the codec's own sizes, whatever the bytes are.

        Raises:
            ValueError: these are not the bytes that `encode` makes of any tensors; it says why.
        """
        if not self.least_bytes <= len(payload) <= self.most_bytes:
            raise ValueError(
                f"A sparse update has {len(payload)} bytes; expected {self.least_bytes} to {self.most_bytes}."
            )
        if not payload.startswith(MARK):
            raise ValueError(f"A sparse update begins with {payload[: len(MARK)]!r}; expected {MARK!r}.")
        (num_samples,) = SAMPLES.unpack_from(payload, len(MARK))
        _check_samples(num_samples)
        levels = np.frombuffer(payload, LEVEL_TYPE, 2 * len(self.layout.shapes), LEVELS_START).reshape(-1, 2)
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=self._head))
        codes, rest = _numbers_of(bits, self.layout.num_sent, CODE_BITS)
        levels = levels.astype(np.float32)
        norm = _checked_norm(levels, self.layout.of_tensors(codes))
        digest = hashlib.sha256(payload).digest()
        update = SparseUpdate(num_samples, levels, codes, self._indices_of(rest), norm, digest)
        for array in (update.levels, update.codes, update.indices):
            array.flags.writeable = False
        return update

    def add_to(self, total: torch.Tensor, update: SparseUpdate, scale: float = 1.0) -> None:
        """Add `scale` times the update to the vector of all tensors: (num_values,) float32, on the CPU.

        Each place is written once, in order, and products are rounded before they are added: equal bits everywhere.
        """
        into, positions = total.numpy(), self.layout.positions(update.indices)
        scaled = (update.levels.astype(np.float64) * scale).astype(np.float32)
        of_codes = np.stack((scaled[:, 0], -scaled[:, 0], scaled[:, 1], -scaled[:, 1]), axis=1)  # (tensor, code)
        tensors = zip(self.layout.of_tensors(positions), self.layout.of_tensors(update.codes), of_codes, strict=True)
        for places, codes, values in tensors:
            into[places] += values[codes]

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors that lie in the vector of all of them, in their shapes; nothing is copied."""
        parts = vector.split(self.layout.tensor_sizes)
        return [part.view(shape) for part, shape in zip(parts, self.layout.shapes, strict=True)]

    def _bits_of_indices(self, indices: np.ndarray) -> np.ndarray:
        gaps = np.diff(indices, prepend=-1) - 1
        firsts = self._firsts()
        gaps[firsts] = indices[firsts]
        is_vector, parts, quotients = self._is_of_vector(), [], np.empty_like(gaps)
        for own, width in zip((~is_vector, is_vector), self.rice_bits, strict=True):
            parts.append(_bits_of(gaps[own] & (1 << width) - 1, width))
            quotients[own] = gaps[own] >> width
        ones = np.cumsum(quotients + 1) - 1
        unary = np.zeros(ones[-1] + 1, dtype=np.uint8)
        unary[ones] = 1
        return np.concatenate((*parts, unary))

    def _indices_of(self, bits: np.ndarray) -> np.ndarray:
        is_vector, unary = self._is_of_vector(), bits
        remainders, widths = np.empty(self.layout.num_sent, dtype=np.int64), np.where(is_vector, *self.rice_bits[::-1])
        for own, width in zip((~is_vector, is_vector), self.rice_bits, strict=True):
            remainders[own], unary = _numbers_of(unary, int(own.sum()), width)
        ones = np.flatnonzero(unary)
        if len(ones) != self.layout.num_sent:
            raise ValueError(f"A sparse update has {len(ones)} indices; expected {self.layout.num_sent}.")
        if len(unary) - ones[-1] > 8:
            raise ValueError("A sparse update goes on after its last index; expected its end.")
        gaps = np.left_shift(np.diff(ones, prepend=-1) - 1, widths) + remainders
        # Sums over all chunks, less what the chunks before have.
        ends, firsts = np.cumsum(gaps + 1), self._firsts()
        before = np.concatenate((np.zeros(1, dtype=np.int64), ends[firsts[1:] - 1]))
        lasts = ends[np.append(firsts[1:], len(ends)) - 1] - before - 1
        if np.any(lasts >= self.layout.chunk_sizes):
            number = int(np.argmax(lasts >= self.layout.chunk_sizes))
            raise ValueError(
                f"A sparse update has index {lasts[number]} in chunk {number}; expected less than "
                f"{self.layout.chunk_sizes[number]}."
            )
        return (ends - 1 - np.repeat(before, self.layout.chunk_counts)).astype(np.uint16)

    def _is_of_vector(self) -> np.ndarray:
        """Return which of the values sent are a vector's: (num_sent,) bool."""
        return np.repeat(self.layout.is_chunk_of_vector, self.layout.chunk_counts)

    def _firsts(self) -> np.ndarray:
        """Return where each chunk begins among the values sent: (num_chunks,)."""
        return np.cumsum(self.layout.chunk_counts) - self.layout.chunk_counts


def _check_samples(num_samples: int) -> None:
    if not 1 <= num_samples <= MOST_SAMPLES:
        raise ValueError(f"A sparse update is of {num_samples} samples; expected 1 to {MOST_SAMPLES}.")


def _checked_norm(levels: np.ndarray, codes_of_tensors: Sequence[np.ndarray]) -> float:
    """Return the norm of all values, summed exactly; raise ValueError unless they are as `quantised` makes them."""
    squares = []
    for number, ((low, high), codes) in enumerate(zip(levels.tolist(), codes_of_tensors, strict=True)):
        if not 0 <= low <= high <= LARGEST_LEVEL or math.copysign(1, low) < 0:
            raise ValueError(
                f"A sparse update has levels {low} and {high} for tensor {number}; expected 0 <= low <= high <= "
                f"{LARGEST_LEVEL:.3g}."
            )
        of_code = np.bincount(codes, minlength=2**CODE_BITS).tolist()
        num_high = of_code[HIGH] + of_code[HIGH | NEGATIVE]
        fits = 0 < num_high < len(codes) if low < high else num_high == 0
        if not fits or (low == 0 and of_code[NEGATIVE]):
            raise ValueError(
                f"A sparse update's codes for tensor {number} do not fit its levels {low} and {high}; expected both "
                "levels in use or equal ones, and no sign of 0."
            )
        squares += [(len(codes) - num_high) * (low * low), num_high * (high * high)]
    return math.sqrt(math.fsum(squares))


def _best_rice_bits(share: float) -> int:
    """Return the number of bits with the least expected length for gaps where this share of the values is sent."""
    if share == 1:
        return 0

    def length(bits: int) -> float:
        zero = power(1 - share, 2**bits)
        return bits + zero / (1 - zero)

    return min(range(16), key=length)


def _bits_of(numbers: np.ndarray, width: int) -> np.ndarray:
    """Return the bits of each number, the highest first: (len(numbers) * width,) uint8."""
    shifts = np.arange(width - 1, -1, -1)
    return (numbers[:, None] >> shifts & 1).astype(np.uint8).reshape(-1)


def _numbers_of(bits: np.ndarray, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return so many numbers, uint8 or int64 as they need, and the bits after them."""
    numbers = np.zeros(count, dtype=np.uint8 if width <= 8 else np.int64)
    for column in bits[: count * width].reshape(count, width).T:
        numbers = np.left_shift(numbers, 1) | column
    return numbers, bits[count * width :]


def _bytes_of(num_bits: int) -> int:
    return -(-num_bits // 8)
