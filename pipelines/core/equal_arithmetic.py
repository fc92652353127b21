"""Arithmetic that gives the same bits on all processors, for whatever peers must compute alike.

Equal everywhere, one at a time and on whole tensors: sum, difference, product and quotient (IEEE 754 rounds each),
minimum, maximum, magnitude, rounding, conversion, comparison, look-up, and `math.fsum` and `math.sqrt`. Not equal (on
x86 with and without AVX2 and AVX-512, and on ARM), so not used where peers must agree: torch's `addcmul`, `addcdiv`,
`lerp`, and `add` with `alpha`, which round once or twice; its sums, means, norms and products of matrices, whose order
differs; its `sqrt`, `exp`, `log` and `pow`; and Python's `**`, which is the C library's. Here is what stands for them.
On a GPU, where nobody must agree, it is what is fastest there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
import torch

SPAN = 2**17
"""Elements that one thread works on at a time: as few as stay in a processor's cache with what is computed of them."""

LEAST_SUM = 2.0**-100
"""Sums of squares in float32 above this are not off by squares that are too small for it."""

SHARES_OF_A_THREAD = 3
"""Several, since threads are not equally fast."""

Part = TypeVar("Part")
Result = TypeVar("Result")

_POOL: ContextVar[ThreadPoolExecutor | None] = ContextVar("pool", default=None)

EXACT_BITS = 53
"""Whole numbers of so many bits are exact in float64."""


def spans(number: int, length: int = SPAN) -> list[slice]:
    """Return the parts of so many elements, in order."""
    return [slice(start, start + length) for start in range(0, number, length)]


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether all values are finite, in one pass and without a copy; integers always are."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


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


def sum_(values: torch.Tensor, most: int = 1) -> torch.Tensor:
    """Return the sum over the first axis on the CPU, (number, ...) -> (...), number >= 1; the values are lost.

    The second half is added to the first, and so on: the number of values alone says in which order. With `most`, what
    is left when they are no more.
    """
    array, number = values.numpy(), len(values)  # numpy, which cuts and adds small arrays in half the time
    while number > most:
        half = (number + 1) // 2
        first = array[: number - half]
        np.add(first, array[half:number], out=first)
        number = half
    return values[:number] if most > 1 else values[0]


def squared_norm(values: torch.Tensor) -> float:
    """Return the sum of the squares of at least one float32 value on the CPU: in float32, in float64 if that is small
    or too large for it."""
    values = values.detach().reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        found = _sum_in_order(values * values)
        if not LEAST_SUM < found < math.inf:
            found = _sum_in_order(values.double().square_())
    return found


def _sum_in_order(values: torch.Tensor) -> float:
    return float(np.add.accumulate(sum_(values, most=1024).numpy(), dtype=np.float64)[-1])


def norm(*tensors: torch.Tensor) -> float:
    """Return the L2 norm of all values of float32 tensors on one device; threads share what is large on a CPU.

    On a CPU it is the root of the sum of the squared norms of each tensor's spans.
    """
    if not all(tensor.is_cpu for tensor in tensors):
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in tensors])).item()
    parts = [part for tensor in tensors if len(tensor) for part in tensor.detach().reshape(-1).split(SPAN)]
    return math.sqrt(math.fsum(shared_out(squared_norm, parts)))


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
    return matrix.div(units).round_(), units


def shared_out(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return the work's result of each part, in order; threads share them.

    Each takes several at a time: to hand one over takes as long as a hundred thousand sums.
    """
    if len(parts) <= 1:
        return [work(part) for part in parts]
    with workers() as pool:
        share = -(-len(parts) // (SHARES_OF_A_THREAD * torch.get_num_threads()))
        shares = (parts[start : start + share] for start in range(0, len(parts), share))
        return [one for done in pool.map(lambda own: [work(part) for part in own], shares) for one in done]


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Yield as many threads as torch would use, each of which computes alone: those of the caller, if it has some.

    Torch's own threads wait for each other after every operation; if another program runs on one of their cores, each
    of these waits may take a time slice. New threads have new memory, which costs as much as what is computed in it.
    """
    if (own := _POOL.get()) is not None:
        yield own
        return
    number = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            token = _POOL.set(pool)
            try:
                yield pool
            finally:
                _POOL.reset(token)
    finally:
        torch.set_num_threads(number)  # the default of threads that have yet to start
