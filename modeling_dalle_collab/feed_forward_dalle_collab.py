"""The gated feed-forward layer. Axes: batch, position, hidden, inner."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .configuration_dalle_collab import DalleCollabConfig
from .linear_dalle_collab import LinearContext, apply_linear, current_gradient_sums, is_plain_product, linear_gradients


class _GatedGelu(torch.autograd.Function):
    """Keeps only its input, and writes its gradient in one piece: autograd would keep three tensors of that size."""

    @staticmethod
    def forward(ctx: LinearContext, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        value, gate = x.chunk(2, dim=-1)
        return F.gelu(gate).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: LinearContext, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        value, gate = x.chunk(2, dim=-1)
        out = torch.empty_like(x)
        value_grad, gate_grad = out.chunk(2, dim=-1)
        torch.mul(grad, F.gelu(gate), out=value_grad)
        torch.ops.aten.gelu_backward.grad_input(grad * value, gate, grad_input=gate_grad)
        return out


def gated_gelu(x: Tensor) -> Tensor:
    """Return the first half of the channels times the exact GELU of the second: (..., 2 x inner) to (..., inner)."""
    if torch.compiler.is_compiling():  # the compiler fuses the plain formula
        value, gate = x.chunk(2, dim=-1)
        return value * F.gelu(gate)
    return _GatedGelu.apply(x)


class _GatedLinear(torch.autograd.Function):
    """`gated_gelu` of a linear layer, in two halves.

    glibc maps tensors above 32 MiB anew each time and zeroes their pages; at the paper's size the whole is 40 MiB, a
    half 20. The bias is added on the way.
    """

    @staticmethod
    def forward(ctx: LinearContext, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        value, gate = (
            torch.addmm(bias_part, rows, weight_part.t())
            for weight_part, bias_part in zip(weight.chunk(2), bias.chunk(2), strict=True)
        )
        ctx.sums, ctx.parameters = current_gradient_sums(), (weight, bias)
        ctx.save_for_backward(x, weight, value, gate)
        return F.gelu(gate).mul_(value).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: LinearContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, value, gate = ctx.saved_tensors
        grad = grad.flatten(0, -2)
        gate_grad = torch.ops.aten.gelu_backward(grad * value, gate)
        value_grad = F.gelu(gate).mul_(grad)
        value_weight, gate_weight = weight.chunk(2)
        x_grad = torch.mm(value_grad, value_weight).addmm_(gate_grad, gate_weight).view_as(x)
        return x_grad, *linear_gradients(ctx.sums, ctx.parameters, [value_grad, gate_grad], x.flatten(0, -2))


class DalleCollabFeedForward(nn.Module):
    """A feed-forward layer whose second half gates the first through a GELU."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = config.feed_forward_dropout
        inner_size = config.feed_forward_multiplier * config.hidden_size
        self.input = nn.Linear(config.hidden_size, 2 * inner_size)
        self.output = nn.Linear(inner_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden_size) to the same shape."""
        inner = self._gated(x)
        return apply_linear(self.output, F.dropout(inner, self.dropout, self.training))

    def _gated(self, x: Tensor) -> Tensor:
        if is_plain_product(x, self.input):
            return _GatedLinear.apply(x, self.input.weight, self.input.bias)
        return gated_gelu(apply_linear(self.input, x))
