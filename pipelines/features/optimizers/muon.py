"""Muon (Jordan et al., 2024): matrices step along their orthogonalised momentum, all else as with AdamW."""

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from pipelines.core.block_quantisation import initial_state, read_statistic, write_statistic
from pipelines.core.equal_arithmetic import product
from pipelines.core.optimizers.adamw import AdamW
from pipelines.core.optimizers.lamb import MEAN, SQUARE
from pipelines.core.optimizers.parameter_groups import weight_decay_groups

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

    @staticmethod
    def groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
        """See `Lamb.groups` and `muon_groups`."""
        return muon_groups(model, weight_decay)

    @torch.no_grad()  # which is a thread's own
    def _update_span(
        self,
        state: dict[str, torch.Tensor],
        group: Mapping[str, Any],
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
        part = gradient[span] * (scale * (1 - momentum))
        mean = read_statistic(state, MEAN, span, momentum).add_(part)
        write_statistic(state, MEAN, span, mean)
        torch.add(part, mean * momentum, out=direction[span])
        parameter[span].mul_(1 - group["lr"] * group["weight_decay"])

    def trust_ratio(self, parameter: torch.Tensor, direction: torch.Tensor) -> float:
        """Make a matrix's direction orthogonal, in place, and return what gives its step the size of AdamW's."""
        if SQUARE.name in self.state[parameter]:
            return super().trust_ratio(parameter, direction)
        orthogonalise_(direction.view_as(parameter))
        return STEP_SIZE * math.sqrt(max(parameter.shape))


def muon_groups(model: torch.nn.Module, weight_decay: float) -> list[dict]:
    """Split the same parameters, in the same order, further: matrices of layers have `is_orthogonal`, all else has not.

    Tables have a row for each token or position, and their gradients rows of zeros; so `nn.Embedding` and what
    `get_output_embeddings` of transformers returns step as with AdamW, and so do kernels of three and more dimensions,
    which are matrices in none of the usual ways but for one stride. A fused matrix, such as that of queries, keys and
    values, is one matrix.

    Raises:
        ValueError: there are none but tables and vectors.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    if (output := getattr(model, "get_output_embeddings", lambda: None)()) is not None:
        tables.add(id(output.weight))
    groups = [
        {**group, "params": list(parameters), "is_orthogonal": is_orthogonal}
        for group in weight_decay_groups(model.named_parameters(), weight_decay)
        for is_orthogonal, parameters in groupby(
            group["params"], lambda p: p.ndim == p.squeeze().ndim == 2 and id(p) not in tables
        )
    ]
    if not any(group["is_orthogonal"] for group in groups):
        raise ValueError(
            "optimizer muon orthogonalises matrices of layers, and this model has none besides its tables of tokens "
            "and positions; expected a model with layers. Cure: --set optimizer=adamw, or inner_optimizer=adamw"
        )
    return groups


def orthogonalise_(matrix: torch.Tensor) -> None:
    """Replace a float32 matrix U S V' by about U V': singular values that are not tiny become 0.7 to 1.2.

    On a CPU all processors, numbers of threads and libraries give the same bits. The products are those of
    `equal_arithmetic.product`: the values of both factors are rounded to whole numbers, at most 2**b, of a power of two
    for each row or column, with 2 b + log2(n) <= 53 for sums of n products. Each product is then a whole number, and
    so is the sum of any of them, at most n 2**(2 b) <= 2**53: float64 has them all exactly, in any order, with fused
    operations or without. `fsum` rounds the squared norm once; all else is one operation of IEEE 754 for each value.

    The iterations are those of `torch.optim.Muon` in another order. Each multiplies X by a polynomial of X'X, which
    has the smaller side only; so these are multiplied first, and X but once. A matrix of 4,096 x 1,024 takes 54 GFLOP
    instead of 97.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    if matrix.device.type != "cpu":
        tall.copy_(_orthogonal_on_gpu(tall))
        return
    blocks = tall.split(BLOCK_ROWS)
    gram = product(blocks[0].T, blocks[0])
    for block in blocks[1:]:
        gram.add_(product(block.T, block))
    norm = max(math.sqrt(math.fsum(gram.diagonal().tolist())), SMALLEST_NORM)
    factor = _product_of_polynomials(gram.div_(norm).div_(norm)).div_(norm)
    for block in blocks:
        block.copy_(product(block, factor))


def _product_of_polynomials(gram: torch.Tensor) -> torch.Tensor:
    """Return the (side, side) float64 matrix that all iterations together multiply X by, from X'X."""
    whole = step = _polynomial(gram)
    for _ in range(NUM_ITERATIONS - 1):
        gram = product(product(step, gram), step)
        step = _polynomial(gram)
        whole = product(whole, step)
    return whole


def _polynomial(gram: torch.Tensor) -> torch.Tensor:
    own, cubic, quintic = COEFFICIENTS
    found = product(gram, gram).mul_(quintic).add_(gram * cubic)
    found.diagonal().add_(own)
    return found


def _orthogonal_on_gpu(tall: torch.Tensor) -> torch.Tensor:
    """Return the same in bfloat16, as `torch.optim.Muon` computes it: inner steps need not be equal anywhere."""
    own, cubic, quintic = COEFFICIENTS
    matrix = tall.bfloat16()
    matrix /= matrix.norm().clamp(min=SMALLEST_NORM)
    for _ in range(NUM_ITERATIONS):
        gram = matrix.T @ matrix
        matrix = torch.addmm(matrix, matrix, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), beta=own)
    return matrix
