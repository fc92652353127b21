"""Weights that accelerate keeps on disk, or in the memory of another device, and brings when a module is called."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import nn

Method = TypeVar("Method", bound=Callable[..., Any])


def with_offloaded_weights(method: Method) -> Method:
    """Make a method of a model work although accelerate has offloaded parts of it.

    accelerate's hooks bring the weights of a module for its call, and linear layers and norms are called. What is also
    used without, the tied table, scales and the output's bias, stays from the first call on. There are no gradients
    then; raises `ValueError` in training.
    """

    @wraps(method)
    def wrapper(self: nn.Module, *args: object, **kwargs: object) -> Any:
        if torch.compiler.is_compiling() or not _keep_uncalled(self):
            return method(self, *args, **kwargs)
        if self.training and torch.is_grad_enabled():
            raise ValueError(
                "Parts of the model are offloaded, to disk or from a GPU, expected all in memory for training. "
                "Load it without device_map, or call model.eval() first."
            )
        with torch.no_grad():
            return method(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]  # the same signature


def _keep_uncalled(model: nn.Module) -> bool:
    """Bring the offloaded weights of modules that are not called, to stay; return whether others are offloaded."""
    is_offloaded = False
    for module in model.modules():
        hook = vars(module).get("_hf_hook")
        for part in getattr(hook, "hooks", [hook]):
            if getattr(part, "offload", False):
                is_offloaded = True
                if not isinstance(module, nn.Linear | nn.LayerNorm):
                    part.pre_forward(module)
                    part.offload = False  # so that it does not take them away again
    return is_offloaded
