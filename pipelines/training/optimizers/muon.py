"""Muon (Jordan et al., 2024): matrices step along their orthogonalised momentum, all else as with AdamW."""

import math
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from pipelines.training.optimizers.adamw import AdamW
from pipelines.training.optimizers.block_statistics import initial_state, read_statistic, write_statistic
from pipelines.training.optimizers.lamb import MEAN, SQUARE

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of X, X X'X and X (X'X)^2 in an iteration of Newton and Schulz; those of `torch.optim.Muon`."""

NUM_ITERATIONS = 5
SMALLEST_NORM = 1e-7
"""A momentum of a smaller norm is divided by this, as torch does."""

STEP_SIZE = 0.2
"""Times the root of the larger side: the root mean square of AdamW's steps (Liu et al., 2025, section 2.2)."""

BLOCK_ROWS = 1024
"""Rows that are float64 at the same time. Other numbers give other bits."""


class Muon(AdamW):
    """Muon with Nesterov momentum, the first of `betas`, for the groups of matrices that `muon_groups` marks.

    Their only statistic is the mean of the gradients. Steps are scaled as with `match_rms_adamw` of `torch.optim.Muon`,
    so all groups take AdamW's learning rates.
    """

    def __init__(self, params: ParamsT, **settings: Any) -> None:
        super().__init__(params, **settings)
        for group in self.param_groups:
            for parameter in group["params"] if group.get("is_orthogonal") else ():
                self.state[parameter] = initial_state(parameter, self.bits, (MEAN,))

    @torch.no_grad()  # which is a thread's own
    def _update_span(
        self,
        state: dict[str, torch.Tensor],
        group: dict[str, Any],
        scale: float,
        gradient: torch.Tensor,
        parameter: torch.Tensor,
        direction: torch.Tensor,
        span: slice,
    ) -> None:
        """Update the mean of a matrix's gradients and write Nesterov's momentum; the decay is decoupled."""
        if not group.get("is_orthogonal"):
            super()._update_span(state, group, scale, gradient, parameter, direction, span)
            return
        momentum = group["betas"][0]
        part = (gradient[span] * scale).mul_(1 - momentum)
        mean = read_statistic(state, MEAN, span).mul_(momentum).add_(part)
        write_statistic(state, MEAN, span, mean)
        torch.add(part, mean * momentum, out=direction[span])
        parameter[span].mul_(1 - group["lr"] * group["weight_decay"])

    def trust_ratio(self, parameter: torch.Tensor, direction: torch.Tensor) -> float:
        """Make a matrix's direction orthogonal, in place, and return what gives its step the size of AdamW's."""
        if SQUARE.name in self.state[parameter]:
            return super().trust_ratio(parameter, direction)
        orthogonalise_(direction.view_as(parameter))
        return STEP_SIZE * math.sqrt(max(parameter.shape))


def orthogonalise_(matrix: torch.Tensor) -> None:
    """Replace a float32 matrix U S V' by about U V': singular values that are not tiny become 0.7 to 1.2.

    On a CPU all processors, numbers of threads and libraries give the same bits. Products alone depend on them, namely
    on the order in which they add and on whether a product and a sum are rounded once or twice; here nothing is
    rounded. Before a product of n summands each, the values of both factors are rounded to whole multiples, at most
    2**b, of a power of two, with 2 b + log2(n) <= 53. A product of two is a whole multiple of the product of these
    powers, and so is every sum of some of the n products, with at most n 2**(2 b) <= 2**53 of them: a float64 has them
    all exactly, in any order, with fused operations or without. The squared norm is a sum that `fsum` rounds once;
    everything else is one operation of IEEE 754 for each value.

    The iterations are those of `torch.optim.Muon` in another order. Each multiplies X by a polynomial of X'X, which
    has the smaller side only; so these are multiplied first, and X but once. A matrix of 4,096 x 1,024 takes 60 GFLOP
    instead of 97.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    if matrix.device.type != "cpu":
        tall.copy_(_orthogonal_on_gpu(tall))
        return
    blocks, largest = tall.split(BLOCK_ROWS), _largest(tall)
    on_grid = (_on_grid(block.double(), len(tall), largest) for block in blocks)
    gram = sum(block.T @ block for block in on_grid)
    norm = max(math.sqrt(math.fsum(gram.diagonal().tolist())), SMALLEST_NORM)
    factor = _product_of_polynomials(gram.mul_(1 / norm / norm)).mul_(1 / norm)
    _on_grid(factor, len(factor), _largest(factor))
    for block in blocks:
        block.copy_(_on_grid(block.double(), len(factor), _largest(block)) @ factor)


def _product_of_polynomials(gram: torch.Tensor) -> torch.Tensor:
    """Return the (side, side) matrix that all iterations together multiply X by, from X'X; float64."""
    own, cubic, quintic = COEFFICIENTS
    product, side = None, len(gram)
    for iteration in range(1, NUM_ITERATIONS + 1):
        _on_grid(gram, side, _largest(gram))
        step = (gram @ gram).mul_(quintic).add_(gram * cubic)
        step.diagonal().add_(own)
        _on_grid(step, side, _largest(step))
        product = step if product is None else _on_grid(product, side, _largest(product)) @ step
        if iteration < NUM_ITERATIONS:
            gram = step @ gram
            gram = _on_grid(gram, side, _largest(gram)) @ step
    return product


def _largest(values: torch.Tensor) -> float:
    least, most = torch.aminmax(values)
    return max(-least.item(), most.item())


def _on_grid(values: torch.Tensor, num_summands: int, largest: float) -> torch.Tensor:
    """Round float64 values of at most `largest`, in place, so that products summed `num_summands` times are exact."""
    bits = (53 - (num_summands - 1).bit_length()) // 2
    # In a sum of 1.5 * 2**52 units and less than half a unit's multiples of them, the last bit is worth one unit.
    shift = math.ldexp(1.5, 52 + math.frexp(largest)[1] - bits)
    return values.add_(shift).sub_(shift)


def _orthogonal_on_gpu(tall: torch.Tensor) -> torch.Tensor:
    """Return the same in bfloat16, as `torch.optim.Muon` computes it: inner steps need not be equal anywhere."""
    own, cubic, quintic = COEFFICIENTS
    matrix = tall.bfloat16()
    matrix /= matrix.norm().clamp(min=SMALLEST_NORM)
    for _ in range(NUM_ITERATIONS):
        gram = matrix.T @ matrix
        matrix = torch.addmm(matrix, matrix, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), beta=own)
    return matrix
