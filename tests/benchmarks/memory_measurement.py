"""Counting the bytes of tensors that a training step really holds, on a device or with fake tensors of any size."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorEvents(TorchDispatchMode):
    """Writes down when a storage comes to life and when it is freed, while the mode is on."""

    def __init__(self, existing: Iterable[Tensor] = ()) -> None:
        """`existing` tensors, and whatever shares their storage, are left out."""
        super().__init__()
        self.events: list[tuple[int, int]] = []
        """Number of the storage and bytes, negative where it is freed."""
        self._numbers = {tensor.untyped_storage()._cdata: -1 for tensor in existing}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return out

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage."""
        return self._numbers[tensor.untyped_storage()._cdata]

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._numbers:
            number = self._numbers[key] = len(self.events)
            self.events.append((number, size))
            weakref.finalize(storage, self._forget, key, number, size).atexit = False

    def _forget(self, key: int, number: int, size: int) -> None:
        self._numbers.pop(key, None)
        self.events.append((number, -size))

    def peak(self, without: frozenset[int] = frozenset()) -> int:
        """Return the most bytes at any time, without those of some storages."""
        live = most = 0
        for number, size in self.events:
            if number not in without:
                live += size
                most = max(most, live)
        return most


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
        activations=seen.peak(without=gradients),
        total=weights + seen.peak(),
    )


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, shared ones once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
