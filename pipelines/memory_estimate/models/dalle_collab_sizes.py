"""The sizes of our model without the libraries that its configuration needs."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

DENSE_MAX_POSITIONS = {"row": 192, "column": 192, "convolutional": 704}
"""Up to this many positions a kind of attention is one masked product; `attention_dalle_collab` measured it."""


@dataclass(frozen=True, kw_only=True)
class DalleCollabSizes:
    """The fields of `DalleCollabConfig` that memory depends on, with its defaults: the paper's run."""

    text_vocab_size: int = 32100
    codebook_size: int = 8192
    text_sequence_length: int = 256
    image_grid_size: int = 32
    hidden_size: int = 1024
    num_hidden_layers: int = 64
    num_attention_heads: int = 16
    head_dim: int = 64
    attention_pattern: tuple[str, ...] = ("row", "column", "row", "row")
    final_attention: str = "convolutional"
    conv_kernel_size: int = 5
    conv_window: str = "centred"
    feed_forward_multiplier: int = 4
    recompute: str = "reversible"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build the sizes from arguments of `DalleCollabConfig` or its `to_dict()`; anything else is ignored."""
        known = {item.name for item in dataclasses.fields(cls)}
        sizes = {name: value for name, value in values.items() if name in known}
        if "attention_pattern" in sizes:
            sizes["attention_pattern"] = tuple(sizes["attention_pattern"])
        return cls(**sizes)

    @property
    def text_block_length(self) -> int:
        """Positions of `<bos>` and the text."""
        return self.text_sequence_length + 1

    @property
    def num_image_codes(self) -> int:
        """Image codes of one image."""
        return self.image_grid_size**2

    @property
    def num_positions(self) -> int:
        """Length of the sequence that the layers see."""
        return self.text_block_length + self.num_image_codes

    @property
    def num_text_ids(self) -> int:
        """Rows of the table for text: pieces and one padding id for each position."""
        return self.text_vocab_size + self.text_sequence_length

    @property
    def vocab_size(self) -> int:
        """Rows of the tied table."""
        return self.num_text_ids + self.codebook_size

    @property
    def inner_size(self) -> int:
        """Channels of all heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def wide_size(self) -> int:
        """Channels inside the feed-forward layer, of each of its two halves."""
        return self.feed_forward_multiplier * self.hidden_size

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """The attention kind of every layer."""
        pattern = self.attention_pattern
        return (*(pattern[layer % len(pattern)] for layer in range(self.num_hidden_layers - 1)), self.final_attention)

    @property
    def num_shared_groups(self) -> int:
        """Different sets of attention and feed-forward weights."""
        return 1 if self.num_hidden_layers == 1 else len(self.attention_pattern) + 1

    def dense_kinds(self, *, on_cpu: bool) -> frozenset[str]:
        """Return the kinds of attention that are computed as one product over all positions: all, on a GPU."""
        limits = DENSE_MAX_POSITIONS.items()
        return frozenset(kind for kind, limit in limits if not on_cpu or self.num_positions <= limit)

    def num_band_lines(self, kind: str) -> int:
        """Lines of the grid, its own included, that a query sees."""
        if kind != "convolutional":
            return 1
        reach = self.conv_kernel_size - 1 if self.conv_window == "corner" else self.conv_kernel_size // 2
        return min(reach + 1, self.image_grid_size)

    @property
    def parameter_shapes(self) -> dict[tuple[int, ...], int]:
        """How many parameters there are of every shape, shared ones once."""
        hidden, inner, wide = self.hidden_size, self.inner_size, self.wide_size
        groups, layers = self.num_shared_groups, self.num_hidden_layers
        shapes: dict[tuple[int, ...], int] = {}
        for shape, number in (
            ((self.vocab_size, hidden), 1),
            ((self.vocab_size,), 1),
            ((hidden,), 2 + 6 * layers + 2 * groups),
            ((3 * inner, hidden), groups),
            ((hidden, inner), groups),
            ((2 * wide, hidden), groups),
            ((2 * wide,), groups),
            ((hidden, wide), groups),
        ):
            shapes[shape] = shapes.get(shape, 0) + number
        return shapes
