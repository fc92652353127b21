"""Layers with shared weights, token shift and the two residual streams, stored or recomputed.

Axes: batch, position, hidden. A layer adds two branches to two streams: `first += attention(second)`, then
`second += feed_forward(first)`. A branch is scale * f(shift(norm(x))): normalisation and scale belong to the layer, the
weights of f to the group of layers that share them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention_dalle_collab import AttentionTables, DalleCollabAttention
from .configuration_dalle_collab import DalleCollabConfig


class _TokenShift(torch.autograd.Function):
    """Writes each output once; the mapping is one to one, so the gradient is the same copy backwards."""

    @staticmethod
    def forward(ctx, x: Tensor, block: int, size: int) -> Tensor:  # noqa: ANN001
        ctx.block, ctx.size = block, size
        return _shift(x, block, size, _copy_forward)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN001
        return _shift(grad, ctx.block, ctx.size, _copy_backward), None, None


def _shift(x: Tensor, block: int, size: int, copy: Callable[[Tensor, Tensor, int, int], None]) -> Tensor:
    half, quarter = x.shape[-1] // 2, x.shape[-1] // 4
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    text, text_out = x[:, :block], out[:, :block]
    copy(text[..., :half], text_out[..., :half], 1, block)
    text_out[..., half:] = text[..., half:]
    if x.shape[1] > block:
        grid, grid_out = (part[:, block:].unflatten(1, (size, size)) for part in (x, out))
        copy(grid[..., :quarter], grid_out[..., :quarter], 1, size)
        copy(grid[..., quarter:half], grid_out[..., quarter:half], 2, size)
        grid_out[..., half:] = grid[..., half:]
    return out


def _copy_forward(source: Tensor, target: Tensor, dim: int, length: int) -> None:
    target.narrow(dim, 1, length - 1).copy_(source.narrow(dim, 0, length - 1))
    target.select(dim, 0).zero_()


def _copy_backward(source: Tensor, target: Tensor, dim: int, length: int) -> None:
    target.narrow(dim, 0, length - 1).copy_(source.narrow(dim, 1, length - 1))
    target.select(dim, length - 1).zero_()


def shift_tokens(x: Tensor, config: DalleCollabConfig) -> Tensor:
    """Give each position some channels of its neighbours: (batch, position, hidden) to the same shape.

    In the text block the first half of the channels comes from the position before. On the image grid the first quarter
    comes from the code above, the second from the code on the left; outside the grid is 0. `x` is the text block alone
    or the text block and the whole grid.
    """
    return _TokenShift.apply(x, config.text_block_length, config.image_grid_size)


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
        value, gate = self.input(x).chunk(2, dim=-1)
        return self.output(F.dropout(value * F.gelu(gate), self.dropout, self.training))


class DalleCollabSharedGroup(nn.Module):
    """The weights that all layers of one place in the attention pattern share."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.attention = DalleCollabAttention(config)
        self.feed_forward = DalleCollabFeedForward(config)


class DalleCollabBranch(nn.Module):
    """What a branch of one layer has of its own: the normalisation before it and the scale after it."""

    def __init__(self, config: DalleCollabConfig, layer_index: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
        self.initial_scale = 0.1 if layer_index < 18 else 1e-5 if layer_index < 24 else 1e-6


class DalleCollabLayer(nn.Module):
    """The own parameters of one layer."""

    def __init__(self, config: DalleCollabConfig, layer_index: int) -> None:
        super().__init__()
        self.attention = DalleCollabBranch(config, layer_index)
        self.feed_forward = DalleCollabBranch(config, layer_index)


@dataclass(frozen=True)
class BranchCall:
    """A branch ready to be computed, and the parameters that it uses."""

    compute: Callable[[Tensor], Tensor]
    parameters: tuple[nn.Parameter, ...]
    is_random: bool
    """Whether it draws random numbers (dropout), which a second computation must draw again."""


class DalleCollabStack(nn.Module):
    """All layers over their shared groups."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.config = config
        self.groups = nn.ModuleList(DalleCollabSharedGroup(config) for _ in range(config.num_shared_groups))
        self.layers = nn.ModuleList(DalleCollabLayer(config, index) for index in range(config.num_hidden_layers))

    def forward(self, x: Tensor, tables: AttentionTables | None = None) -> Tensor:
        """Run all layers over whole sequences: (batch, position, hidden_size) to the mean of the two streams."""
        calls = list(self._calls(tables or AttentionTables.build(self.config, x.device, x.dtype)))
        if self.config.recompute == "reversible" and torch.is_grad_enabled():
            parameters = dict.fromkeys(parameter for call in calls for parameter in call.parameters)
            return _ReversibleStack.apply(x, calls, *parameters)
        return _run(x, calls)[2]

    def _calls(self, tables: AttentionTables) -> Iterator[BranchCall]:
        for layer, kind, group_index in zip(
            self.layers, self.config.layer_kinds, self.config.layer_groups, strict=True
        ):
            group = self.groups[group_index]
            attend = partial(group.attention, kind=kind, tables=tables)
            yield self._call(layer.attention, attend, group.attention)
            yield self._call(layer.feed_forward, group.feed_forward, group.feed_forward)

    def _call(self, branch: DalleCollabBranch, compute: Callable[[Tensor], Tensor], shared: nn.Module) -> BranchCall:
        def run(x: Tensor) -> Tensor:
            return branch.scale * compute(shift_tokens(branch.norm(x), self.config))

        dropout = max(self.config.attention_dropout, self.config.feed_forward_dropout)
        return BranchCall(run, (*branch.parameters(), *shared.parameters()), self.training and dropout > 0)


def _run(x: Tensor, calls: list[BranchCall]) -> tuple[Tensor, Tensor, Tensor]:
    first = second = x
    for attention, feed_forward in zip(calls[::2], calls[1::2], strict=True):
        first = first + attention.compute(second)
        second = second + feed_forward.compute(first)
    return first, second, (first + second) * 0.5


class _ReversibleStack(torch.autograd.Function):
    """Keeps only the last value of the two streams; the backward pass recomputes every branch from it.

    The parameters are inputs of the function, each once, so that their gradients reach autograd like any others
    (`torch.autograd.grad`, hooks and gradient accumulation work).
    """

    @staticmethod
    def forward(ctx, x: Tensor, calls: list[BranchCall], *parameters: Tensor) -> Tensor:  # noqa: ANN001
        ctx.calls, ctx.parameters = calls, parameters
        ctx.replays = []
        first = second = x
        for attention, feed_forward in zip(calls[::2], calls[1::2], strict=True):
            ctx.replays.append(_Replay(x.device, attention.is_random))
            first = first + attention.compute(second)
            ctx.replays.append(_Replay(x.device, feed_forward.is_random))
            second = second + feed_forward.compute(first)
        ctx.save_for_backward(first, second)
        return (first + second) * 0.5

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN001
        first, second = ctx.saved_tensors
        grad_first = grad_second = grad * 0.5
        grads: dict[Tensor, Tensor] = {}
        for index in range(len(ctx.calls) - 2, -1, -2):
            second, grad_first = _undo(ctx, index + 1, second, first, grad_second, grad_first, grads)
            first, grad_second = _undo(ctx, index, first, second, grad_first, grad_second, grads)
        return grad_first + grad_second, None, *(grads.get(parameter) for parameter in ctx.parameters)


def _undo(
    ctx,  # noqa: ANN001
    index: int,
    target: Tensor,
    source: Tensor,
    grad_target: Tensor,
    grad_source: Tensor,
    grads: dict[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Take branch `index` back: return `target` before it was added and the gradient of `source` with it."""
    call = ctx.calls[index]
    wanted = [parameter for parameter in call.parameters if parameter.requires_grad]
    with torch.enable_grad():
        source = source.detach().requires_grad_()
        added = ctx.replays[index](call.compute, source)
    source_grad, *parameter_grads = torch.autograd.grad(added, [source, *wanted], grad_target)
    for parameter, parameter_grad in zip(wanted, parameter_grads, strict=True):
        seen = grads.get(parameter)
        grads[parameter] = parameter_grad if seen is None else seen.add_(parameter_grad)
    return target - added.detach(), grad_source + source_grad


class _Replay:
    """Computes a branch again under the same conditions: the same autocast and, for dropout, random numbers."""

    def __init__(self, device: torch.device, keep_random_state: bool) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.random_states = _random_states(self.devices) if keep_random_state else None
        self.autocast = nullcontext
        if device.type != "meta":
            enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
            self.autocast = partial(torch.autocast, device.type, dtype=dtype, enabled=enabled)

    def __call__(self, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with self._same_random_numbers(), self.autocast():
            return compute(x)

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        if self.random_states is None:
            yield
            return
        with torch.random.fork_rng(devices=self.devices):
            torch.set_rng_state(self.random_states[0])
            for device, state in zip(self.devices, self.random_states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def _random_states(devices: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
