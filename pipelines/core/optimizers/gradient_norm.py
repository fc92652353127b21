"""The gradient's global norm, which is also the check that it is finite."""

import torch

from pipelines.core.equal_arithmetic import norm

LARGEST_NORM = 2.0**64
"""The square of a gradient of more is infinite in float32."""


def global_norm(optimizer: torch.optim.Optimizer) -> float:
    """Return the L2 norm of all gradients of an optimizer's parameters; ValueError if it is not finite in float32."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    found = norm(*gradients)
    if not found < LARGEST_NORM:
        raise ValueError(f"The global gradient norm is {found}; the step is refused and nothing has changed.")
    return found
