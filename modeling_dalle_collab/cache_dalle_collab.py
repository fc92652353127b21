"""What generation remembers: the text read once, and of the image only what each layer's mask can still see.

Axes: prompt, candidate, sample (all candidates of all prompts, prompt-major), head, slot, head_size. The keys and
values of the text are kept once for each prompt, whatever the number of candidates.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_dalle_collab import DalleCollabAttention, grid_offsets_visible, num_band_lines, rotary_table
from .blocks_dalle_collab import DalleCollabStack, shift_tokens
from .configuration_dalle_collab import DalleCollabConfig


@dataclass(frozen=True)
class TextPrefix:
    """The text of some prompts as every layer's image positions see it."""

    keys: list[Tensor]
    """For each layer (prompt, head, text block, head_size)."""
    values: list[Tensor]
    """For each layer (prompt, head, text block, head_size)."""
    hidden: Tensor
    """(prompt, hidden): the state of the last text token, which predicts the first image code."""


def read_text(stack: DalleCollabStack, x: Tensor) -> TextPrefix:
    """Run the layers over embedded text blocks, (prompt, text block, hidden), and keep keys and values."""
    config = stack.config
    rotations = rotary_table(config, x.device)[: config.text_block_length]
    keys, values = [], []
    first = second = x
    for layer, group_index in zip(stack.layers, config.layer_groups, strict=True):
        group = stack.groups[group_index]
        shifted = shift_tokens(layer.attention.norm(second), config)
        query, key, value = group.attention.project(shifted, rotations)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        keys.append(key.contiguous())
        values.append(value.contiguous())
        first = first + layer.attention.scale * group.attention.merge(attended)
        shifted = shift_tokens(layer.feed_forward.norm(first), config)
        second = second + layer.feed_forward.scale * group.feed_forward(shifted)
    return TextPrefix(keys=keys, values=values, hidden=(first[:, -1] + second[:, -1]) * 0.5)


class ShiftCache:
    """Remembers the channels that the token shift hands on: those above for a whole row, those on the left for one."""

    def __init__(self, config: DalleCollabConfig, num_samples: int, like: Tensor) -> None:
        self.size, self.quarter = config.image_grid_size, config.hidden_size // 4
        self.above = like.new_zeros(self.size, num_samples, self.quarter)
        self.left = like.new_zeros(num_samples, self.quarter)

    def shift(self, x: Tensor, place: int) -> Tensor:
        """Return `x`, the normalised (sample, hidden) at image `place`, shifted; places must come in order."""
        column = place % self.size
        above, left, rest = x.split([self.quarter, self.quarter, x.shape[1] - 2 * self.quarter], dim=1)
        shown_left = self.left if column else torch.zeros_like(left)
        shifted = torch.cat([self.above[column], shown_left, rest], dim=1)
        self.above[column], self.left = above, left
        return shifted


class ImageCache:
    """Keys and values of the image codes that a layer can still see.

    A row layer keeps the current row, a convolutional one the rows that its window reaches, a column layer everything.
    """

    def __init__(self, config: DalleCollabConfig, kind: str, num_samples: int, like: Tensor) -> None:
        self.config, self.kind = config, kind
        size = config.image_grid_size
        self.num_slots = {"row": size, "column": size * size}.get(kind, num_band_lines(config, kind) * size)
        shape = (num_samples, config.num_attention_heads, self.num_slots, config.head_dim)
        self.keys, self.values = like.new_empty(shape), like.new_empty(shape)

    def add(self, key: Tensor, value: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Keep (sample, head, head_size) of image `place`; return all visible from there, (..., visible, head_size)."""
        slot = self._slot(place)
        self.keys[:, :, slot], self.values[:, :, slot] = key, value
        visible = self._visible_slots(place)
        if isinstance(visible, slice):
            return self.keys[:, :, visible], self.values[:, :, visible]
        return self.keys.index_select(2, visible), self.values.index_select(2, visible)

    def _slot(self, place: int) -> int:
        row, column = divmod(place, self.config.image_grid_size)
        if self.kind == "column":
            return column * self.config.image_grid_size + row
        return place % self.num_slots

    def _visible_slots(self, place: int) -> slice | Tensor:
        row, column = divmod(place, self.config.image_grid_size)
        if self.kind == "row":
            return slice(0, column + 1)
        if self.kind == "column":
            return slice(self._slot(place) - row, self._slot(place) + 1)
        earlier = torch.arange(max(0, place + 1 - self.num_slots), place + 1)
        rows = earlier.div(self.config.image_grid_size, rounding_mode="floor")
        visible = grid_offsets_visible(
            self.config, self.kind, row - rows, column - earlier % self.config.image_grid_size
        )
        return (earlier[visible] % self.num_slots).to(self.keys.device)


class GenerationCache:
    """The state of one batch of candidates between two image codes; each candidate belongs to one prompt."""

    def __init__(self, stack: DalleCollabStack, prefix: TextPrefix, num_candidates: int) -> None:
        self.stack, self.prefix = stack, prefix
        config = stack.config
        self.num_prompts, self.num_candidates = len(prefix.hidden), num_candidates
        self.rotations = rotary_table(config, prefix.hidden.device)[config.text_block_length :]
        samples = self.num_prompts * num_candidates
        self.images = [ImageCache(config, kind, samples, prefix.hidden) for kind in config.layer_kinds]
        self.attention_shifts = [ShiftCache(config, samples, prefix.hidden) for _ in config.layer_kinds]
        self.feed_forward_shifts = [ShiftCache(config, samples, prefix.hidden) for _ in config.layer_kinds]

    def num_bytes(self) -> int:
        """Return the memory of all keys and values, text and image."""
        tensors = [*self.prefix.keys, *self.prefix.values]
        tensors += [part for image in self.images for part in (image.keys, image.values)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def first_hidden(self) -> Tensor:
        """Return the state that predicts the first image code: (sample, hidden)."""
        return self.prefix.hidden.repeat_interleave(self.num_candidates, dim=0)

    def step(self, x: Tensor, place: int) -> Tensor:
        """Read the embedded codes of image `place`, (sample, hidden), and return the state that predicts the next."""
        first = second = x
        for index, (layer, group_index) in enumerate(
            zip(self.stack.layers, self.stack.config.layer_groups, strict=True)
        ):
            group = self.stack.groups[group_index]
            shifted = self.attention_shifts[index].shift(layer.attention.norm(second), place)
            first = first + layer.attention.scale * self._attend(group.attention, shifted, index, place)
            shifted = self.feed_forward_shifts[index].shift(layer.feed_forward.norm(first), place)
            second = second + layer.feed_forward.scale * group.feed_forward(shifted)
        return (first + second) * 0.5

    def _attend(self, attention: DalleCollabAttention, x: Tensor, index: int, place: int) -> Tensor:
        query, key, value = attention.project(x[:, None], self.rotations[place : place + 1])
        keys, values = self.images[index].add(key[:, :, 0], value[:, :, 0], place)
        query = query * attention.config.head_dim**-0.5
        text_keys, text_values = self.prefix.keys[index], self.prefix.values[index]
        text_scores = self._by_sample(self._by_prompt(query) @ text_keys.transpose(-1, -2))
        scores = torch.cat([text_scores, query @ keys.transpose(-1, -2)], dim=-1)  # (sample, head, 1, visible)
        weights = scores.float().softmax(dim=-1).to(query.dtype)
        text_weights, image_weights = weights.split([text_keys.shape[2], keys.shape[2]], dim=-1)
        from_text = self._by_sample(self._by_prompt(text_weights) @ text_values)
        return attention.merge(from_text + image_weights @ values)[:, 0]

    def _by_prompt(self, x: Tensor) -> Tensor:
        """(sample, head, 1, size) to (prompt, head, candidate, size), so that candidates share their text."""
        return x.squeeze(2).unflatten(0, (self.num_prompts, self.num_candidates)).transpose(1, 2)

    def _by_sample(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)
