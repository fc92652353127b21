"""Counting the bytes of tensors that a training step really holds, on a device or with fake tensors of any size."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from pipelines.features.memory_estimate.counted_step import TensorEvents


def peak_of(seen: TensorEvents, without: frozenset[int] = frozenset()) -> int:
    """Return the most bytes at any time, without those of some storages."""
    return max(accumulate(size for number, size in seen.events if number not in without))


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """Bytes of tensors in a forward and backward pass."""

    weights: int
    gradients: int
    activations: int
    """The most that anything else reached."""
    total: int
    """The most that all of it reached at one time."""


def measure_step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> MeasuredStep:
    """Run one forward and backward pass from no gradients; `loss` computes what is to be differentiated."""
    model.train()
    model.zero_grad(set_to_none=True)
    parameters = list(model.parameters())
    with TensorEvents([*parameters, *model.buffers()]) as seen:
        loss().backward()
        gradients = frozenset(seen.number_of(p.grad) for p in parameters if p.grad is not None)
    weights = storage_bytes(parameters)
    return MeasuredStep(
        weights=weights,
        gradients=storage_bytes(p.grad for p in parameters if p.grad is not None),
        activations=peak_of(seen, without=gradients),
        total=weights + peak_of(seen),
    )


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, shared ones once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
