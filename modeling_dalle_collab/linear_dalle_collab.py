"""Products with the weights of linear layers, the faster way on a CPU for few rows and for training.

Axes: row (batch and position in one), input, output.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

# Up to this many rows, a product with a large matrix on a CPU streams it up to twice as fast if it comes first: 8
# rows through the linear layers of the paper's size took 42 ms against 63 on one thread.
FEW_ROWS = 32
LARGE_MATRIX = 2**20

Gradients = dict[Tensor, Tensor]
"""Sums of gradients by parameter."""

Products = Mapping[nn.Module, Callable[[Tensor], Tensor]]
"""What computes the product with a module's weights, (..., input) to (..., output)."""

_products: ContextVar[Products | None] = ContextVar("products", default=None)
_gradient_sums: ContextVar[Gradients | None] = ContextVar("gradient_sums", default=None)


@contextmanager
def add_gradients_to(sums: Gradients) -> Iterator[None]:
    """Make the products computed inside add the gradients of their weights to `sums`, in their backward pass.

    So layers with shared weights need no second tensor of a weight's size and no pass over it: at the paper's size on a
    CPU that is a twentieth of the step. A gradient in `sums` is not also given to autograd.
    """
    token = _gradient_sums.set(sums)
    try:
        yield
    finally:
        _gradient_sums.reset(token)


def current_gradient_sums() -> Gradients | None:
    """Return the sums of the surrounding `add_gradients_to`, if there is one."""
    return _gradient_sums.get()


@contextmanager
def use_products(products: Products) -> Iterator[None]:
    """Make `apply_linear` compute with these inside, where they have the layer."""
    token = _products.set(products)
    try:
        yield
    finally:
        _products.reset(token)


def product_of(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return what the surrounding `use_products` has for a module, if anything."""
    products = _products.get()
    return None if products is None else products.get(module)


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)` for a linear layer, (..., input) to (..., output), the faster way on a CPU."""
    if (product := product_of(layer)) is not None:
        return product(x)
    if not is_plain_linear(layer):
        return layer(x)
    if current_gradient_sums() is not None and is_plain_product(x, layer):
        return _SummingLinear.apply(x, layer.weight, layer.bias)
    return multiply(x, layer.weight, layer.bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`: (..., input) to (..., output)."""
    rows = x.shape[:-1].numel()
    if x.device.type != "cpu" or torch.is_grad_enabled() or not 1 < rows <= FEW_ROWS or weight.numel() < LARGE_MATRIX:
        return F.linear(x, weight, bias)
    out = torch.mm(weight, x.reshape(rows, -1).t()).t()
    if bias is not None:
        out = out + bias
    return out.contiguous().view(*x.shape[:-1], -1)


def is_plain_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether it is an unmodified linear layer."""
    return is_plain(layer, nn.Linear)


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module is of exactly this kind and unmodified (by peft, accelerate, a quantiser or a hook)."""
    changed = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return type(module) is kind and not changed


def is_plain_product(x: Tensor, layer: nn.Module) -> bool:
    """Return whether a plain linear layer is applied to many rows of its own type on a CPU, in uncompiled code."""
    return (
        is_plain_linear(layer)
        and x.device.type == "cpu"
        and x.dtype == layer.weight.dtype
        and x.shape[:-1].numel() > FEW_ROWS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class LinearContext(FunctionCtx):
    """What a linear layer's forward pass saves for the backward pass."""

    sums: Gradients | None
    parameters: tuple[Tensor, Tensor | None]
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _SummingLinear(torch.autograd.Function):
    """`F.linear` that adds the gradients of its weights to the sums of the surrounding `add_gradients_to`."""

    @staticmethod
    def forward(ctx: LinearContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.sums, ctx.parameters = current_gradient_sums(), (weight, bias)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: LinearContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_rows, rows = grad.flatten(0, -2), x.flatten(0, -2)
        x_grad = grad @ weight if ctx.needs_input_grad[0] else None
        return x_grad, *linear_gradients(ctx.sums, ctx.parameters, [grad_rows], rows)


def linear_gradients(
    sums: Gradients | None, parameters: tuple[Tensor, Tensor | None], grad_parts: list[Tensor], rows: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weight (output, input) and bias (output), or add them to `sums` and return None.

    `grad_parts` (row, part of output) are the output's gradient in pieces; `rows` is (row, input).
    """
    own: Gradients = {} if sums is None else sums
    weight, bias = parameters
    if weight.requires_grad:
        already = 1.0 if weight in own else 0.0
        total = own[weight] if weight in own else own.setdefault(weight, torch.empty_like(weight))
        for target, part in zip(total.split([part.shape[1] for part in grad_parts]), grad_parts, strict=True):
            target.addmm_(part.t(), rows, beta=already)
    if bias is not None and bias.requires_grad:
        bias_grad = torch.cat([part.sum(0) for part in grad_parts])
        own[bias] = own[bias].add_(bias_grad) if bias in own else bias_grad
    if sums is not None:
        return None, None
    return own.get(weight), None if bias is None else own.get(bias)
