"""Arithmetic that gives the same bits on all processors, for whatever peers must compute alike.

Equal everywhere, one at a time and on whole tensors: sum, difference, product and quotient (IEEE 754 rounds each),
minimum, maximum, magnitude, rounding, conversion, comparison, look-up, and `math.fsum` and `math.sqrt`. Not equal (on
x86 with and without AVX2 and AVX-512, and on ARM), so not used where peers must agree: torch's `addcmul`, `addcdiv`,
`lerp`, and `add` with `alpha`, which round once or twice; its sums, means, norms and products of matrices, whose order
differs; its `sqrt`, `exp`, `log` and `pow`; and Python's `**`, which is the C library's. Here is what stands for them.
On a GPU, where nobody must agree, it is what is fastest there.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

SPAN = 2**18
"""Elements that one thread works on at a time: as few as stay in a processor's cache."""

LANES = 2**14
"""Partial sums that a span's squares are added to."""

EXACT_BITS = 53
"""Whole numbers of so many bits are exact in float64."""


def spans(number: int, length: int = SPAN) -> list[slice]:
    """Return the parts of so many elements, in order."""
    return [slice(start, start + length) for start in range(0, number, length)]


def root_(values: torch.Tensor) -> torch.Tensor:
    """Replace float32 or float64 values by their square roots and return them; on a CPU each is the nearest number.

    torch's own on a CPU is that of MKL, whose last bit differs between Intel (37 of 6,144 values are not the nearest)
    and AMD (853 of them). numpy takes the processor's instruction, which rounds as IEEE 754 demands.
    """
    if values.device.type != "cpu":
        return values.sqrt_()
    array = values.numpy()
    np.sqrt(array, out=array)
    return values


def power(base: float, exponent: int) -> float:
    """Return a power with a whole exponent of at least 0, by products alone."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result *= base
        base, exponent = base * base, exponent // 2
    return result


def sum_(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the first axis, (number, ...) -> (...); the values are lost.

    The second half is added to the first, and so on: the number of values alone says in which order.
    """
    number = len(values)
    while number > 1:
        half = (number + 1) // 2
        values[: number - half].add_(values[half:number])
        number = half
    return values[0]


def squared_norm(values: torch.Tensor) -> float:
    """Return the sum of the squares of float32 values on the CPU, in float64, where each square is exact."""
    values = values.detach().reshape(-1)
    sums = torch.zeros(min(LANES, len(values)), dtype=torch.float64)
    buffer = torch.empty_like(sums)
    for part in values.split(LANES):
        squares = buffer[: len(part)].copy_(part)
        sums[: len(part)].add_(squares.mul_(squares))
    return sum_(sums).item() if len(values) else 0.0


def norm(*tensors: torch.Tensor) -> float:
    """Return the L2 norm of all values of float32 tensors on one device; threads share what is large on a CPU.

    On a CPU it is the root of the sum of the squared norms of each tensor's spans.
    """
    if not all(tensor.is_cpu for tensor in tensors):
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in tensors])).item()
    parts = [part for tensor in tensors for part in tensor.detach().reshape(-1).split(SPAN)]
    if sum(map(len, parts)) <= SPAN:
        return math.sqrt(math.fsum(map(squared_norm, parts)))
    with workers() as pool:
        return math.sqrt(math.fsum(pool.map(squared_norm, parts)))


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a product of matrices on the CPU: (row, inner) @ (inner, column) -> (row, column) float64.

    Each row of the first and column of the second matrix is rounded to (53 - log2 inner) / 2 bits of its largest value.
    Then all products and their sums are whole numbers below 2^53, exact in any order: 19 bits for inner = 2^15.
    """
    bits = (EXACT_BITS - (one.shape[1] - 1).bit_length()) // 2
    (left, of_rows), (right, of_columns) = _whole_numbers(one, bits, 1), _whole_numbers(other, bits, 0)
    return (left @ right).mul_(of_rows).mul_(of_columns)


def _whole_numbers(matrix: torch.Tensor, bits: int, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix as whole numbers of so many bits (float64), and what their units are along the axis."""
    _, exponents = np.frexp(matrix.abs().amax(dim=axis, keepdim=True).numpy())
    units = torch.from_numpy(np.ldexp(1.0, exponents - bits))
    return matrix.double().div_(units).round_(), units


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Yield as many threads as torch would use, each of which computes alone.

    Torch's own threads wait for each other after every operation; if another program runs on one of their cores, each
    of these waits may take a time slice.
    """
    number = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(number)  # the default of threads that have yet to start
