"""The gated feed-forward layer. Axes: batch, position, hidden, inner."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention_dalle_collab import apply_linear
from .configuration_dalle_collab import DalleCollabConfig


class _GatedGelu(torch.autograd.Function):
    """Keeps its input alone, and writes its gradient in one piece: autograd would keep three tensors of that size."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(x)
        value, gate = x.chunk(2, dim=-1)
        return F.gelu(gate).mul_(value)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # noqa: ANN001
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


class DalleCollabFeedForward(nn.Module):
    """A feed-forward layer whose second half gates the first through a GELU."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.dropout = config.feed_forward_dropout
        inner_size = config.feed_forward_multiplier * config.hidden_size
        self.input = nn.Linear(config.hidden_size, 2 * inner_size)
        self.output = nn.Linear(inner_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden_size) to the same shape."""
        inner = gated_gelu(apply_linear(self.input, x))
        return apply_linear(self.output, F.dropout(inner, self.dropout, self.training))
