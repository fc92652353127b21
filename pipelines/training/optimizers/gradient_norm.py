"""The gradient's global norm, which is also the check that it is finite."""

import math

import torch


def global_norm(optimizer: torch.optim.Optimizer) -> float:
    """Return the L2 norm of all gradients of an optimizer's parameters; ValueError if it is not finite."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not gradients:
        return 0.0
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])).item()
    if not math.isfinite(norm):
        raise ValueError(f"The global gradient norm is {norm}; the step is refused and nothing has changed.")
    return norm
