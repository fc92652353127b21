"""Layers with shared weights, token shift and the two residual streams.

Axes: batch, position, hidden. A layer adds two branches to two streams: `first += attention(second)`, then
`second += feed_forward(first)`. A branch is scale * f(shift(norm(x))): normalisation and scale belong to the layer, the
weights of f to the group of layers that share them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from .attention_dalle_collab import AttentionTables, DalleCollabAttention
from .compiled_dalle_collab import compiled
from .configuration_dalle_collab import DalleCollabConfig
from .feed_forward_dalle_collab import DalleCollabFeedForward
from .reversible_dalle_collab import BranchCall, run_layer, run_reversibly


class _ShiftContext(FunctionCtx):
    block: int
    size: int


class _TokenShift(torch.autograd.Function):
    """Writes each output once; the mapping is one to one, so the gradient is the same copy backwards."""

    @staticmethod
    def forward(ctx: _ShiftContext, x: Tensor, block: int, size: int) -> Tensor:
        ctx.block, ctx.size = block, size
        return _shift(x, block, size, _copy_forward)

    @staticmethod
    def backward(ctx: _ShiftContext, grad: Tensor) -> tuple[Tensor, None, None]:
        return _shift(grad, ctx.block, ctx.size, _copy_backward), None, None


def _shift(x: Tensor, block: int, size: int, copy: Callable[[Tensor, Tensor, int, int], None]) -> Tensor:
    half, quarter = x.shape[-1] // 2, x.shape[-1] // 4
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    text, text_out = x[:, :block], out[:, :block]
    copy(text[..., :half], text_out[..., :half], 1, block)
    text_out[..., half:] = text[..., half:]
    if x.shape[1] > block:
        grid, grid_out = (part[:, block:].unflatten(1, (-1, size)) for part in (x, out))
        copy(grid[..., :quarter], grid_out[..., :quarter], 1, grid.shape[1])
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
    comes from the code above, the second from the code on the left; outside the grid is 0. `x` is the text block and
    any number of whole rows.
    """
    block, size = config.text_block_length, config.image_grid_size
    if not torch.compiler.is_compiling():
        return _TokenShift.apply(x, block, size)
    # The compiler fuses this with what is around it, and autograd's backward pass, too.
    half, quarter = x.shape[-1] // 2, x.shape[-1] // 4
    text, grid = x[:, :block], x[:, block:].unflatten(1, (-1, size))
    text = torch.cat([F.pad(text[..., :half], (0, 0, 1, -1)), text[..., half:]], dim=-1)
    above = F.pad(grid[..., :quarter], (0, 0, 0, 0, 1, -1))
    left = F.pad(grid[..., quarter:half], (0, 0, 1, -1))
    return torch.cat([text, torch.cat([above, left, grid[..., half:]], dim=-1).flatten(1, 2)], dim=1)


class DalleCollabSharedGroup(nn.Module):
    """The weights that all layers of one place in the attention pattern share."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.attention = DalleCollabAttention(config)
        self.feed_forward = DalleCollabFeedForward(config)


class DalleCollabBranch(nn.Module):
    """The parameters of one layer's branch: the normalisation before it and the scale after it."""

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


def _attention_branch(
    branch: DalleCollabBranch,
    attention: DalleCollabAttention,
    x: Tensor,
    kind: str,
    tables: AttentionTables,
    on_weights: Callable[[Tensor], None] | None,
) -> Tensor:
    return branch.scale * attention(shift_tokens(branch.norm(x), attention.config), kind, tables, on_weights)


def _feed_forward_branch(branch: DalleCollabBranch, feed_forward: DalleCollabFeedForward, x: Tensor) -> Tensor:
    return branch.scale * feed_forward(shift_tokens(branch.norm(x), feed_forward.config))


@dataclass(frozen=True, kw_only=True)
class Taps:
    """Collects intermediate results of layers; a pass with taps stores all activations."""

    hidden_states: list[Tensor] = field(default_factory=list)
    """The mean of the streams before the first layer and after every layer, (batch, position, hidden)."""
    attentions: list[Tensor] | None = None
    """The attention weights of every layer, (batch, head, query, key); None if not requested."""


class DalleCollabStack(nn.Module):
    """All layers over their shared groups."""

    _gradient_checkpointing_func: Callable[..., tuple[Tensor, Tensor]]  # given by transformers

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.config = config
        self.groups = nn.ModuleList(DalleCollabSharedGroup(config) for _ in range(config.num_shared_groups))
        self.layers = nn.ModuleList(DalleCollabLayer(config, index) for index in range(config.num_hidden_layers))
        self.gradient_checkpointing = False  # set by transformers' activation_checkpointing_enable
        self.compiles_layers = False  # set by compile_layers

    def forward(self, x: Tensor, tables: AttentionTables | None = None, taps: Taps | None = None) -> Tensor:
        """Run all layers over whole sequences: (batch, position, hidden_size) to the mean of the two streams."""
        first, second = self.run_layers(x, x, tables=tables, taps=taps)
        hidden = (first + second) * 0.5
        if taps is not None:
            taps.hidden_states.append(hidden)
        return hidden

    def run_layers(
        self,
        first: Tensor,
        second: Tensor,
        layers: range | None = None,
        tables: AttentionTables | None = None,
        taps: Taps | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run consecutive layers, or all, over whole sequences: streams (batch, position, hidden_size) to the same."""
        layers = range(len(self.layers)) if layers is None else layers
        attend, feed = _attention_branch, _feed_forward_branch
        if is_compiled := taps is None and self._compiles(first):
            attend, feed = compiled(attend), compiled(feed)
        tables = tables or AttentionTables.build(self.config, first.device, first.dtype, for_compiled_code=is_compiled)
        on_weights = None if taps is None or taps.attentions is None else taps.attentions.append
        calls = list(self._calls(tables, on_weights, layers, attend, feed))
        if num_recomputed := self._num_recomputed_branches(taps, layers):
            first, second = run_reversibly(first, second, calls[:num_recomputed])
            calls = calls[num_recomputed:]
        for pair in zip(calls[::2], calls[1::2], strict=True):
            if taps is not None:
                taps.hidden_states.append((first + second) * 0.5)
            if self.gradient_checkpointing and self.training:
                first, second = self._gradient_checkpointing_func(run_layer, first, second, *pair)
            else:
                first, second = run_layer(first, second, *pair)
        return first, second

    def _compiles(self, x: Tensor) -> bool:
        """Whether a pass is of compiled layers: training, of whole sequences, where the compiler can."""
        return (
            self.compiles_layers
            and torch.is_grad_enabled()
            and x.shape[1] == self.config.text_block_length + self.config.num_image_codes
            and not torch.compiler.is_compiling()
            and not any(compiled(branch).has_failed for branch in (_attention_branch, _feed_forward_branch))
        )

    def _num_recomputed_branches(self, taps: Taps | None, layers: range) -> int:
        """Two branches per layer; the last layers are the stored ones, because their backward pass comes first."""
        if not torch.is_grad_enabled() or taps is not None or (self.gradient_checkpointing and self.training):
            return 0
        end = {"reversible": len(self.layers), "partial": len(self.layers) // 2, "none": 0}[self.config.recompute]
        return 2 * len(range(layers.start, min(layers.stop, end)))

    def parts_of_layers(
        self, layers: range | None = None
    ) -> list[tuple[DalleCollabLayer, str, DalleCollabSharedGroup]]:
        """Return for each layer, or some, its own weights, its kind of attention and the weights that it shares."""
        kinds, groups = self.config.layer_kinds, self.config.layer_groups
        parts = [(layer, kind, self.groups[at]) for layer, kind, at in zip(self.layers, kinds, groups, strict=True)]
        parts = parts if layers is None else parts[layers.start : layers.stop]
        return cast("list[tuple[DalleCollabLayer, str, DalleCollabSharedGroup]]", parts)

    def _has_dropout(self) -> bool:
        adapters = [getattr(module, "p", 0.0) for module in self.groups.modules()]
        return max(self.config.attention_dropout, self.config.feed_forward_dropout, *adapters) > 0

    def _calls(
        self,
        tables: AttentionTables,
        on_weights: Callable[[Tensor], None] | None = None,
        layers: range | None = None,
        attend: Callable[..., Tensor] = _attention_branch,
        feed: Callable[..., Tensor] = _feed_forward_branch,
    ) -> Iterator[BranchCall]:
        is_random = self.training and self._has_dropout()
        for layer, kind, group in self.parts_of_layers(layers):
            compute = partial(attend, layer.attention, group.attention, kind=kind, tables=tables, on_weights=on_weights)
            yield BranchCall(compute, (*layer.attention.parameters(), *group.attention.parameters()), is_random)
            compute = partial(feed, layer.feed_forward, group.feed_forward)
            yield BranchCall(compute, (*layer.feed_forward.parameters(), *group.feed_forward.parameters()), is_random)
