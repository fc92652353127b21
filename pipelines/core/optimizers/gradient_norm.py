"""The gradient's global norm, which is also the check that it is finite."""

import torch

from pipelines.core.equal_arithmetic import norm

LARGEST_NORM = 2.0**64
"""The square of a gradient of more is infinite in float32."""


class RefusedStepError(ValueError):
    """A step along a gradient that no optimizer can use; nothing has changed."""


def global_norm(optimizer: torch.optim.Optimizer) -> float:
    """Return the L2 norm of all gradients of an optimizer's parameters; RefusedStepError if float32 has it not."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    found = norm(*gradients)
    if not found < LARGEST_NORM:
        raise RefusedStepError(f"The global gradient norm is {found}; the step is refused and nothing has changed.")
    return found
