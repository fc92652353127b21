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
