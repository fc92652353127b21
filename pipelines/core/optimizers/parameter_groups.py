"""Which parameters decay, and which are matrices of layers."""

from collections.abc import Iterable
from itertools import groupby

import torch


def weight_decay_groups(named_parameters: Iterable[tuple[str, torch.nn.Parameter]], weight_decay: float) -> list[dict]:
    """Split parameters into those that decay and those that do not: vectors (biases, norms, LayerScale) do not."""
    parameters = [parameter for _, parameter in named_parameters]
    matrices = [p for p in parameters if p.squeeze().ndim > 1]
    vectors = [p for p in parameters if p.squeeze().ndim <= 1]
    groups = [dict(params=matrices, weight_decay=weight_decay), dict(params=vectors, weight_decay=0.0)]
    return [group for group in groups if group["params"]]


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


def in_optimizer_order(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The model's parameters in the order of an optimizer's groups, which is that of the shared state."""
    return [parameter for group in weight_decay_groups(model.named_parameters(), 0.0) for parameter in group["params"]]
