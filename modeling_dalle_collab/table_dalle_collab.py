"""The tied table in training on a CPU: rows for ids, the cross-entropy of the next ids, and one gradient for both.

Axes: row (batch and position in one), hidden, id.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from .linear_dalle_collab import Gradients

CHUNK_ELEMENTS = 2**22
"""So many logits exist at once; what the backward pass needs of them is kept instead."""


def table_rows(table: nn.Module, ids: range, device: torch.device) -> Tensor:
    """Return the rows of neighbouring ids as an embedding looks them up: (id, hidden), with an adapter's part.

    With its `weight` alone the head would be another function than the embedding, until the adapter is merged.
    """
    if type(table) is nn.Embedding and "forward" not in vars(table):
        return table.weight[ids.start : ids.stop]
    # Hooks behind it are about embeddings, as noise is; those before it choose adapters.
    look_up = table if table._forward_pre_hooks else table.forward
    return look_up(torch.arange(ids.start, ids.stop, device=device))


class _LookupContext(FunctionCtx):
    sums: Gradients
    parameters: tuple[Tensor, ...]
    saved_tensors: tuple[Tensor, ...]


class _Lookup(torch.autograd.Function):
    """Rows of the table. Its backward pass is a step's last, so it gives autograd all that others have added up."""

    @staticmethod
    def forward(ctx: _LookupContext, ids: Tensor, sums: Gradients, *parameters: Tensor) -> Tensor:
        ctx.sums, ctx.parameters = sums, parameters
        ctx.save_for_backward(ids)
        return F.embedding(ids, parameters[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: _LookupContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ids,), table = ctx.saved_tensors, ctx.parameters[0]
        if table.requires_grad:
            _sum_of(ctx.sums, table).index_add_(0, ids.flatten(), grad.flatten(0, -2))
        return None, None, *(ctx.sums.pop(parameter, None) for parameter in ctx.parameters)


def look_up(ids: Tensor, table: Tensor, others: Iterable[Tensor], sums: Gradients) -> Tensor:
    """Return the rows of `ids`, (batch, position) to (batch, position, hidden).

    The gradients of `table` and of `others`, which are used behind it, are what `sums` has of them in the end.
    """
    return _Lookup.apply(ids, sums, table, *others)


class _CrossEntropyContext(FunctionCtx):
    sums: Gradients
    table: Tensor
    first: int
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _CrossEntropyContext,
        x: Tensor,
        bias: Tensor,
        labels: Tensor,
        table: Tensor,
        first: int,
        sums: Gradients,
    ) -> Tensor:
        ctx.sums, ctx.table, ctx.first = sums, table, first
        weight, errors = table[first : first + len(bias)], x.new_empty(len(x), len(bias))
        num_rows = max(1, CHUNK_ELEMENTS // len(bias))
        for part, out in zip(x.split(num_rows), errors.split(num_rows), strict=True):
            torch.log_softmax(torch.addmm(bias, part, weight.t()), 1, out=out)
        loss = F.nll_loss(errors, labels)
        errors.exp_()[torch.arange(len(labels), device=labels.device), labels] -= 1.0
        ctx.save_for_backward(x, errors)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: _CrossEntropyContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, errors = ctx.saved_tensors
        scale, rows = grad / len(x), slice(ctx.first, ctx.first + errors.shape[1])
        if ctx.table.requires_grad:
            _sum_of(ctx.sums, ctx.table)[rows].addmm_(errors.t(), x * scale)
        x_grad = torch.mm(errors, ctx.table[rows]).mul_(scale) if ctx.needs_input_grad[0] else None
        bias_grad = errors.sum(0).mul_(scale) if ctx.needs_input_grad[1] else None
        return x_grad, bias_grad, None, None, None, None


def cross_entropy(x: Tensor, bias: Tensor, labels: Tensor, table: Tensor, first: int, sums: Gradients) -> Tensor:
    """Return the mean cross-entropy of `labels`, (row) int64, which are relative to the table's row `first`.

    `x` is (row, hidden), `bias` (id) has one value for each id that can be predicted. The table's gradient is added to
    `sums`.
    """
    return _CrossEntropy.apply(x, bias, labels, table, first, sums)


def _sum_of(sums: Gradients, table: Tensor) -> Tensor:
    if table not in sums:
        sums[table] = torch.zeros_like(table)
    return sums[table]
