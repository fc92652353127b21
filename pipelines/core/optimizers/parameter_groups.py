"""Which parameters decay."""

from collections.abc import Iterable

import torch


def weight_decay_groups(named_parameters: Iterable[tuple[str, torch.nn.Parameter]], weight_decay: float) -> list[dict]:
    """Split parameters into those that decay and those that do not: vectors (biases, norms, LayerScale) do not."""
    parameters = [parameter for _, parameter in named_parameters]
    matrices = [p for p in parameters if p.squeeze().ndim > 1]
    vectors = [p for p in parameters if p.squeeze().ndim <= 1]
    groups = [dict(params=matrices, weight_decay=weight_decay), dict(params=vectors, weight_decay=0.0)]
    return [group for group in groups if group["params"]]


def in_optimizer_order(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The model's parameters in the order of an optimizer's groups, which is that of the shared state."""
    return [parameter for group in weight_decay_groups(model.named_parameters(), 0.0) for parameter in group["params"]]
