"""Causal attention over a text block and a grid of image codes, by row, by column or by a window of the grid.

Axes: batch, head, position (`<bos>`, the text, then the image codes in raster order), head_size. A text position sees
the text up to itself; an image position sees the whole text block and, of the image, its own row up to itself, its own
column up to itself, or the past part of a window around itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .configuration_dalle_collab import DalleCollabConfig
from .linear_dalle_collab import apply_linear

# Up to this many positions one masked product over everything beats the banded one, which has more and smaller steps.
# Measured on one CPU thread, forward and backward, dense against banded (row, convolutional): 19 and 26 against 40 and
# 62 ms at 81 positions, 30 and 29 against 32 and 64 at 177, 30 and 27 against 20 and 41 at 321, 438 and 455 against 175
# and 233 at the paper's 1281.
DENSE_MAX_POSITIONS = {"row": 192, "column": 192, "convolutional": 704}


def rotary_angles(config: DalleCollabConfig, device: torch.device | str | None = None) -> Tensor:
    """Return the angle of every position and pair of channels: (position, head_dim / 2) float32.

    A third of the pairs turns with the place in the text (every image code is at 8192), a third with the row and a
    third with the column of the grid (every text token is at -10); leftover pairs do not turn. Always
    float32: the angles go up to 8192 radians, and in bfloat16 the logits of a trained model would move by 6.
    """
    part = config.head_dim // 3
    num_pairs = part // 2
    exponents = torch.arange(0, 2 * num_pairs, 2, device=device, dtype=torch.float32) / part
    text_frequencies = 1.0 / (10000**exponents)
    grid_frequencies = torch.linspace(1.0, 5.0, num_pairs, device=device, dtype=torch.float32) * math.pi
    text_places, row_places, column_places = _rotary_places(config, device)
    parts = [
        text_places[:, None] * text_frequencies,
        row_places[:, None] * grid_frequencies,
        column_places[:, None] * grid_frequencies,
    ]
    still = torch.zeros(len(text_places), config.head_dim // 2 - 3 * num_pairs, device=device, dtype=torch.float32)
    return torch.cat([*parts, still], dim=-1)


def _rotary_places(config: DalleCollabConfig, device: torch.device | str | None) -> tuple[Tensor, Tensor, Tensor]:
    text = torch.arange(config.text_block_length, device=device, dtype=torch.float32)
    line = torch.linspace(-1.0, 1.0, config.image_grid_size, device=device, dtype=torch.float32)
    outside_grid = torch.full_like(text, -10.0)
    outside_text = torch.full((config.num_image_codes,), 8192.0, device=device, dtype=torch.float32)
    rows = line.repeat_interleave(config.image_grid_size)
    columns = line.repeat(config.image_grid_size)
    return torch.cat([text, outside_text]), torch.cat([outside_grid, rows]), torch.cat([outside_grid, columns])


def rotary_table(config: DalleCollabConfig, device: torch.device | str | None = None) -> Tensor:
    """Return cosine and sine of every angle: (position, head_dim / 2, 2) float32."""
    angles = rotary_angles(config, device)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotate_pairs(x: Tensor, rotations: Tensor) -> Tensor:
    """Turn neighbouring channels (2i, 2i + 1) of `x` (..., head_dim) by `rotations` (..., head_dim / 2, 2)."""
    pairs = x.unflatten(-1, (-1, 2))
    if x.dtype == torch.float32 and not torch.compiler.is_compiling():
        return torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(rotations)).flatten(-2)
    # Neither bfloat16 nor compiled code supports complex numbers; the arithmetic is the same.
    cos, sin = rotations.to(x.dtype).unbind(-1)
    even, odd = pairs.unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def grid_offsets_visible(config: DalleCollabConfig, kind: str, rows_back: Tensor, columns_back: Tensor) -> Tensor:
    """Return whether an image query sees an image key a number of rows and columns before it (broadcast, bool)."""
    if kind == "row":
        return (rows_back == 0) & (columns_back >= 0)
    if kind == "column":
        return (columns_back == 0) & (rows_back >= 0)
    if config.conv_window == "corner":
        reach = config.conv_kernel_size - 1
        return (rows_back >= 0) & (rows_back <= reach) & (columns_back >= 0) & (columns_back <= reach)
    reach = config.conv_kernel_size // 2
    not_future = (rows_back > 0) | ((rows_back == 0) & (columns_back >= 0))
    return not_future & (rows_back <= reach) & (columns_back.abs() <= reach)


def visible_mask(config: DalleCollabConfig, kind: str, device: torch.device | str | None = None) -> Tensor:
    """Return which key every query may see: (position, position) bool, True where it may."""
    place = torch.arange(config.text_block_length + config.num_image_codes, device=device)
    return _is_visible(config, kind, place[:, None], place)


def _is_visible(config: DalleCollabConfig, kind: str, query: Tensor, key: Tensor) -> Tensor:
    """Return whether positions of queries see positions of keys (broadcast, bool)."""
    block, size = config.text_block_length, config.image_grid_size
    rows_back = (query - block).div(size, rounding_mode="floor") - (key - block).div(size, rounding_mode="floor")
    columns_back = (query - block) % size - (key - block) % size
    on_grid = grid_offsets_visible(config, kind, rows_back, columns_back)
    return (query >= key) & ((key < block) | ((query >= block) & on_grid))


def visible_blocks(config: DalleCollabConfig, kind: str, device: torch.device | str) -> BlockMask:
    """Return the same for FlexAttention, which skips blocks of keys that no query of a block sees."""
    return _visible_blocks(
        config.text_sequence_length,
        config.image_grid_size,
        config.conv_kernel_size,
        config.conv_window,
        kind=kind,
        device=str(device),
    )


@lru_cache(maxsize=32)  # passes share it: making it takes longer than a layer
def _visible_blocks(text: int, grid: int, kernel: int, window: str, *, kind: str, device: str) -> BlockMask:
    config = DalleCollabConfig(
        text_sequence_length=text, image_grid_size=grid, conv_kernel_size=kernel, conv_window=window
    )
    length = config.text_block_length + config.num_image_codes

    def is_visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return _is_visible(config, kind, query, key)

    with torch.inference_mode(False), torch.no_grad():  # later passes may need to keep its tensors
        return create_block_mask(is_visible, None, None, length, length, device=device)


def band_mask(config: DalleCollabConfig, kind: str, device: torch.device | str | None = None) -> Tensor:
    """Return the mask of a line of queries against its band: (line, query in line, band lines x key in line) bool.

    A line is a row of the grid (a column for column attention); its band is itself and the lines before it that
    the window reaches, the nearest last.
    """
    size, lines = config.image_grid_size, num_band_lines(config, kind)
    line = torch.arange(size, device=device)
    back = torch.arange(lines - 1, -1, -1, device=device)
    lines_back = back[None, :, None].expand(size, lines, size)
    within_line = (line[:, None, None] - line[None, None, :]).expand(size, lines, size)
    # Inside its line, column attention is row attention on the transposed grid.
    visible = grid_offsets_visible(config, "row" if kind == "column" else kind, lines_back, within_line)
    inside_grid = line[:, None] >= back
    return (visible & inside_grid[:, None, :, None]).flatten(2)


def num_band_lines(config: DalleCollabConfig, kind: str) -> int:
    """Return how many lines of the grid, including its own, a query can see."""
    if kind != "convolutional":
        return 1
    reach = config.conv_kernel_size - 1 if config.conv_window == "corner" else config.conv_kernel_size // 2
    return min(reach + 1, config.image_grid_size)


@dataclass(frozen=True)
class AttentionTables:
    """What all layers share in one forward pass: rotations of every position and one mask for each kind used."""

    rotations: Tensor
    """(position, head_dim / 2, 2) float32, as `rotary_table`."""
    masks: dict[str, Tensor]
    """For each kind 0 where a key is visible, -inf elsewhere; as `visible_mask` for dense kinds, else `band_mask`."""
    dense_kinds: frozenset[str]
    """The kinds computed as one masked product over all positions."""
    eager: bool = False
    """Whether weights are computed in plain steps, so that they can be returned; all kinds are dense then."""
    blocks: dict[str, BlockMask] = field(default_factory=dict)
    """For each kind what FlexAttention needs, in compiled code on a GPU; there are no masks then."""

    @classmethod
    def build(
        cls,
        config: DalleCollabConfig,
        device: torch.device,
        dtype: torch.dtype,
        dense_kinds: frozenset[str] | None = None,
        *,
        for_compiled_code: bool = False,
    ) -> "AttentionTables":
        """Make the tables for whole sequences; without `dense_kinds` each kind is computed the faster way.

        `config._attn_implementation` chooses between fused products ("sdpa") and plain ones ("eager").
        """
        eager = config._attn_implementation == "eager"
        kinds, rotations = dict.fromkeys(config.layer_kinds), rotary_table(config, device)
        if for_compiled_code and device.type == "cuda" and not eager:
            blocks = {kind: visible_blocks(config, kind, device) for kind in kinds}
            return cls(rotations=rotations, masks={}, dense_kinds=frozenset(), blocks=blocks)
        if eager:
            dense_kinds = frozenset(kinds)
        if dense_kinds is None:
            dense_kinds = kinds_computed_densely(config, device.type)
        masks = {}
        for kind in kinds:
            visible = (visible_mask if kind in dense_kinds else band_mask)(config, kind, device)
            masks[kind] = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, -math.inf)
        return cls(rotations=rotations, masks=masks, dense_kinds=dense_kinds, eager=eager)


def kinds_computed_densely(config: DalleCollabConfig, device_type: str) -> frozenset[str]:
    """Return the kinds for which one masked product over everything is faster than the banded one."""
    length = config.text_block_length + config.num_image_codes
    return frozenset(kind for kind, limit in DENSE_MAX_POSITIONS.items() if device_type == "cuda" or length <= limit)


class DalleCollabAttention(nn.Module):
    """The projections of multi-head attention; the kind of attention is an argument, so layers can share weights."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__()
        self.config = config
        self.inner_size = config.num_attention_heads * config.head_dim
        self.qkv = nn.Linear(config.hidden_size, 3 * self.inner_size, bias=False)
        self.output = nn.Linear(self.inner_size, config.hidden_size)

    def forward(
        self, x: Tensor, kind: str, tables: AttentionTables, on_weights: Callable[[Tensor], None] | None = None
    ) -> Tensor:
        """Attend over the text block and any number of whole rows: (batch, position, hidden_size) to the same shape.

        `on_weights` gets the weights (batch, head, query, key) where the tables are eager.
        """
        return self.merge(self.attend(*self.project(x, tables.rotations[: x.shape[1]]), kind, tables, on_weights))

    def project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, keys and values, each (batch, head, position, head_size); values turn as well."""
        query, key, value = self.rotated(x, rotations).transpose(1, 2).chunk(3, dim=1)
        return query, key, value

    def rotated(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Return the same in one tensor, (batch, position, 3 x head, head_size).

        `rotations` are (position, head_size / 2, 2), or of each sequence its own, with the batch in front.
        """
        qkv = apply_linear(self.qkv, x).unflatten(-1, (3 * self.config.num_attention_heads, self.config.head_dim))
        return rotate_pairs(qkv, rotations.unsqueeze(-3))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kind: str,
        tables: AttentionTables,
        on_weights: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Return the values that each position sees, (batch, head, position, head_size) like the arguments."""
        if kind in tables.blocks:
            return flex_attention(query, key, value, block_mask=tables.blocks[kind])
        mask, length = tables.masks[kind].to(query.dtype), query.shape[2]
        if kind not in tables.dense_kinds:
            return self._banded(query, key, value, kind, mask)
        mask = mask[:length, :length]
        if not tables.eager:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        scores = (query * self.config.head_dim**-0.5) @ key.transpose(-1, -2) + mask
        weights = scores.float().softmax(dim=-1).to(query.dtype)
        if on_weights is not None:
            on_weights(weights)
        return weights @ value

    def merge(self, attended: Tensor) -> Tensor:
        """Join the heads of (batch, head, position, head_size) and project to (batch, position, hidden_size)."""
        out = apply_linear(self.output, attended.transpose(1, 2).flatten(2))
        return F.dropout(out, self.config.attention_dropout, self.training)

    def _banded(self, query: Tensor, key: Tensor, value: Tensor, kind: str, mask: Tensor) -> Tensor:
        block = self.config.text_block_length
        (query_t, query_i), (key_t, key_i), (value_t, value_i) = (
            part.split([block, query.shape[2] - block], dim=2) for part in (query, key, value)
        )
        text = F.scaled_dot_product_attention(query_t, key_t, value_t, is_causal=True)
        lines = num_band_lines(self.config, kind)
        query_lines = self._to_lines(query_i * self.config.head_dim**-0.5, kind)  # (batch, head, line, size, head_size)
        key_bands, value_bands = (_bands(self._to_lines(part, kind), lines) for part in (key_i, value_i))
        text_scores = query_lines.flatten(2, 3) @ key_t.transpose(-1, -2)  # (batch, head, image, text block)
        mask = mask[: query_lines.shape[2], : query_lines.shape[3], : key_bands.shape[3]]
        band_scores = query_lines @ key_bands.transpose(-1, -2) + mask  # (batch, head, line, size, lines x size)
        scores = torch.cat([text_scores, band_scores.flatten(2, 3)], dim=-1)
        weights = scores.float().softmax(dim=-1).to(query.dtype)
        text_weights, band_weights = weights.split([block, band_scores.shape[-1]], dim=-1)
        from_text = text_weights @ value_t
        from_band = band_weights.unflatten(2, query_lines.shape[2:4]) @ value_bands
        image = self._from_lines(from_text.unflatten(2, query_lines.shape[2:4]) + from_band, kind)
        return torch.cat([text, image], dim=2)

    def _to_lines(self, x: Tensor, kind: str) -> Tensor:
        grid = x.unflatten(2, (-1, self.config.image_grid_size))
        return grid.transpose(2, 3) if kind == "column" else grid

    def _from_lines(self, x: Tensor, kind: str) -> Tensor:
        return (x.transpose(2, 3) if kind == "column" else x).flatten(2, 3)


def attend_with_sum(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what queries see of some keys, as the fused product would, and the logarithm of their weights' sum.

    All (batch, head, position, head_size), with (batch, 1, query, key) added to the scores; the sum is (batch, head,
    query) float32.
    """
    if query.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias)
    if query.device.type == "cuda" and has_fused_sums(query.device, query.dtype, query.shape[-1]):
        bias = None if bias is None else _aligned(bias).expand(-1, query.shape[1], -1, -1)
        found = torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, bias, True)
        return found[0], found[1][..., : query.shape[2]]  # its sums are padded
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    scores = (scores if bias is None else scores + bias).float()
    total = scores.logsumexp(dim=-1)
    return (scores - total[..., None]).exp().to(value.dtype) @ value, total


@torch.compiler.assume_constant_result  # tried while code is compiled, not in it
def has_fused_sums(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Return whether a device has the product that also returns the sums, for such values and heads."""
    return _has_fused_sums(device, dtype, head_size)


@lru_cache
def _has_fused_sums(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    probe = torch.zeros(1, 1, 1, head_size, device=device, dtype=dtype)
    try:
        torch.ops.aten._scaled_dot_product_efficient_attention(probe, probe, probe, None, True)
    except RuntimeError:  # older GPUs lack bfloat16, all of them odd sizes, some vendors' the product
        return False
    return True


def _aligned(bias: Tensor) -> Tensor:
    """Return it with rows that begin at multiples of 8 values, as the fused product on a GPU wants them."""
    return F.pad(bias, (0, -bias.shape[-1] % 8))[..., : bias.shape[-1]]


def _bands(lines: Tensor, num_lines: int) -> Tensor:
    """Put the lines before it in front of every line: (batch, head, line, size, ...) to (..., line, n x size, ...)."""
    if num_lines == 1:
        return lines
    padded = F.pad(lines, (0, 0, 0, 0, num_lines - 1, 0))
    bands = padded.unfold(2, num_lines, 1)  # (batch, head, line, size, head_size, lines)
    return bands.permute(0, 1, 2, 5, 3, 4).flatten(3, 4)
