"""The cache of generation: captions and image prompts read once, and of images what each layer's mask still sees.

Axes: prompt, candidate, sample (all candidates of all prompts, prompt-major), head, slot, head_size, hidden. The keys
and values of the text are kept once for each prompt, whatever the number of candidates.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_dalle_collab import (
    AttentionTables,
    DalleCollabAttention,
    grid_offsets_visible,
    num_band_lines,
    rotary_table,
)
from .blocks_dalle_collab import DalleCollabStack, shift_tokens
from .configuration_dalle_collab import DalleCollabConfig

Place = TypeVar("Place", int, Tensor)


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """Captions, each with `num_places` image codes behind it, as every layer's next image positions see them."""

    text_keys: list[Tensor]
    """For each layer (prompt, head, text block, head_size)."""
    text_values: list[Tensor]
    """For each layer (prompt, head, text block, head_size)."""
    image_keys: list[Tensor]
    """For each layer (prompt, head, num_places, head_size)."""
    image_values: list[Tensor]
    """For each layer (prompt, head, num_places, head_size)."""
    shifted: list[Tensor]
    """For each branch, attention and feed-forward in turn, its normalised input, (prompt, num_places, hidden / 2)."""
    hidden: Tensor
    """(prompt, hidden): the state of the last position, which predicts the next image code."""

    @property
    def num_places(self) -> int:
        """Number of image codes that have been read."""
        return self.shifted[0].shape[1] if self.shifted else 0

    def join(self, other: "Prefix") -> "Prefix":
        """Return one prefix of this one's prompts and then the other's."""
        lists = {
            name: [torch.cat(pair) for pair in zip(getattr(self, name), getattr(other, name), strict=True)]
            for name in LIST_FIELDS
        }
        return Prefix(hidden=torch.cat([self.hidden, other.hidden]), **lists)


LIST_FIELDS = tuple(item.name for item in fields(Prefix) if item.name != "hidden")


def read_prefix(stack: DalleCollabStack, x: Tensor, num_places: int = 0) -> Prefix:
    """Run the layers over embedded text blocks, each with whole rows of the image behind it, and keep what is seen.

    `x`: (prompt, text block + rows, hidden), of whose rows the first `num_places` image codes count.
    """
    config, block = stack.config, stack.config.text_block_length
    tables = AttentionTables.build(config, x.device, x.dtype)
    lists: dict[str, list[Tensor]] = {name: [] for name in LIST_FIELDS}

    def keep(name: str, part: Tensor) -> None:
        text, image = part[:, :, :block], part[:, :, block : block + num_places]
        lists[f"text_{name}"].append(text.contiguous())
        lists[f"image_{name}"].append(image.contiguous())

    def shift(normed: Tensor) -> Tensor:
        lists["shifted"].append(normed[:, block : block + num_places, : config.hidden_size // 2].contiguous())
        return shift_tokens(normed, config)

    first = second = x
    for layer, kind, group in stack.parts_of_layers():
        query, key, value = group.attention.project(shift(layer.attention.norm(second)), tables.rotations[: x.shape[1]])
        keep("keys", key)
        keep("values", value)
        if x.shape[1] == block:
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            attended = group.attention.attend(query, key, value, kind, tables)
        first = first + layer.attention.scale * group.attention.merge(attended)
        second = second + layer.feed_forward.scale * group.feed_forward(shift(layer.feed_forward.norm(first)))
    last = block + num_places - 1
    return Prefix(hidden=(first[:, last] + second[:, last]) * 0.5, **lists)


class ShiftCache:
    """Remembers the channels that the token shift passes on, for a row of places: the newest of each column."""

    def __init__(self, config: DalleCollabConfig, prefix: Prefix, branch: int, num_candidates: int) -> None:
        self.size, self.quarter = config.image_grid_size, config.hidden_size // 4
        num_samples = len(prefix.hidden) * num_candidates
        # One column more than the grid has: what is on the left of the first column is zero.
        self.seen = prefix.hidden.new_zeros(self.size + 1, num_samples, 2 * self.quarter)
        if prefix.num_places:
            read = prefix.shifted[branch].repeat_interleave(num_candidates, dim=0)  # (sample, place, hidden / 2)
            places = torch.arange(max(0, prefix.num_places - self.size), prefix.num_places, device=read.device)
            self.seen[places % self.size] = read[:, places].transpose(0, 1)

    def shift(self, x: Tensor, place: int | Tensor) -> Tensor:
        """Return `x`, the normalised (sample, hidden) at image `place`, shifted; places must come in order."""
        quarter, column = self.quarter, place % self.size
        if isinstance(column, Tensor):
            pair = self.seen.index_select(0, torch.stack([column, (column - 1) % (self.size + 1)]))
            shown = [pair[0, :, :quarter], pair[1, :, quarter:]]
        else:
            shown = [self.seen[column, :, :quarter], self.seen[column - 1, :, quarter:]]
        shifted = torch.cat([*shown, x[:, 2 * quarter :]], dim=1)
        if isinstance(column, Tensor):
            self.seen.index_copy_(0, column.view(1), x[None, :, : 2 * quarter])
        else:
            self.seen[column] = x[:, : 2 * quarter]
        return shifted


class ImageCache:
    """Keys and values of the image codes that a layer can still see.

    A row layer keeps the current row, a convolutional one the rows that its window reaches, a column layer everything.
    The tensors have one size from the start.
    """

    def __init__(self, config: DalleCollabConfig, kind: str, prefix: Prefix, layer: int, num_candidates: int) -> None:
        self.config, self.kind = config, kind
        size = config.image_grid_size
        self.num_slots = {"row": size, "column": size * size}.get(kind, num_band_lines(config, kind) * size)
        num_samples = len(prefix.hidden) * num_candidates
        shape = (num_samples, config.num_attention_heads, self.num_slots, config.head_dim)
        self.keys, self.values = prefix.hidden.new_zeros(shape), prefix.hidden.new_zeros(shape)
        if num_places := prefix.num_places:
            places = torch.arange(max(0, num_places - self.num_slots), num_places, device=self.keys.device)
            slots = self._slot(places)
            for kept, read in ((self.keys, prefix.image_keys), (self.values, prefix.image_values)):
                kept[:, :, slots] = read[layer][:, :, places].repeat_interleave(num_candidates, dim=0)

    def add(self, key: Tensor, value: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Keep (sample, head, head_size) of image `place`; return all visible from there, (..., visible, head_size)."""
        slot = self._slot(place)
        self.keys[:, :, slot], self.values[:, :, slot] = key, value
        visible = self._visible_slots(place)
        if isinstance(visible, slice):
            return self.keys[:, :, visible], self.values[:, :, visible]
        return self.keys.index_select(2, visible), self.values.index_select(2, visible)

    def add_at(self, key: Tensor, value: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same for a `place` that is a tensor; return all slots, visible or not, (..., slot, head_size)."""
        slot = self._slot(place).view(1)
        self.keys.index_copy_(2, slot, key[:, :, None])
        self.values.index_copy_(2, slot, value[:, :, None])
        return self.keys, self.values

    def visible_table(self) -> Tensor:
        """Return which slots an image place sees once its own is kept: (place, slot) bool."""
        places = torch.arange(self.config.num_image_codes, device=self.keys.device)
        held = torch.full((len(places), self.num_slots), -1, device=self.keys.device)
        for place in range(len(places)):
            held[place:, self._slot(place)] = place
        size = self.config.image_grid_size
        rows_back = places[:, None] // size - held.div(size, rounding_mode="floor")
        seen = grid_offsets_visible(self.config, self.kind, rows_back, places[:, None] % size - held % size)
        return seen & (held >= 0)

    def _slot(self, place: Place) -> Place:
        if self.kind == "column":
            size = self.config.image_grid_size
            return place % size * size + place // size
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
    """The state of one batch of candidates between two image codes; each candidate belongs to one prompt.

    With `static` every step works on tensors of the same sizes, whatever its place, so that it can be compiled once or
    captured as a CUDA graph; it then also reads invisible slots, and masks them.
    """

    def __init__(self, stack: DalleCollabStack, prefix: Prefix, num_candidates: int, *, static: bool = False) -> None:
        self.stack, self.prefix, self.static = stack, prefix, static
        config, device = stack.config, prefix.hidden.device
        self.num_prompts, self.num_candidates = len(prefix.hidden), num_candidates
        self.rotations = rotary_table(config, device)[config.text_block_length :]
        self.images = [
            ImageCache(config, kind, prefix, layer, num_candidates) for layer, kind in enumerate(config.layer_kinds)
        ]
        self.shifts = [
            ShiftCache(config, prefix, branch, num_candidates) for branch in range(2 * config.num_hidden_layers)
        ]
        self.masks: dict[str, Tensor] = {}
        if static:
            self.masks = {image.kind: _bias(image.visible_table(), prefix.hidden.dtype) for image in self.images}

    def num_bytes(self) -> int:
        """Return the memory of all keys and values, text and image."""
        tensors = [*self.prefix.text_keys, *self.prefix.text_values]
        tensors += [part for image in self.images for part in (image.keys, image.values)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def first_hidden(self) -> Tensor:
        """Return the state that predicts the first image code behind the prefix: (sample, hidden)."""
        return self.prefix.hidden.repeat_interleave(self.num_candidates, dim=0)

    def step(self, x: Tensor, place: int | Tensor) -> Tensor:
        """Read the embedded codes of image `place`, (sample, hidden), and return the state that predicts the next.

        `place` is an int, or a tensor without dimensions if the cache is static.
        """
        first = second = x
        for index, (layer, _, group) in enumerate(self.stack.parts_of_layers()):
            shifted = self.shifts[2 * index].shift(layer.attention.norm(second), place)
            first = torch.addcmul(first, layer.attention.scale, self._attend(group.attention, shifted, index, place))
            shifted = self.shifts[2 * index + 1].shift(layer.feed_forward.norm(first), place)
            second = torch.addcmul(second, layer.feed_forward.scale, group.feed_forward(shifted))
        return (first + second) * 0.5

    def _attend(self, attention: DalleCollabAttention, x: Tensor, index: int, place: int | Tensor) -> Tensor:
        image = self.images[index]
        at = place.view(1) if isinstance(place, Tensor) else slice(place, place + 1)
        query, key, value = attention.project(x[:, None], self.rotations[at])
        if isinstance(place, Tensor):
            keys, values = image.add_at(key[:, :, 0], value[:, :, 0], place)
        else:
            keys, values = image.add(key[:, :, 0], value[:, :, 0], place)
        text_keys, text_values = self.prefix.text_keys[index], self.prefix.text_values[index]
        if self.num_candidates == 1 and not self.static:  # no other candidate to share the text with: one fused product
            keys, values = torch.cat([text_keys, keys], dim=2), torch.cat([text_values, values], dim=2)
            return attention.merge(F.scaled_dot_product_attention(query, keys, values))[:, 0]
        query = query * attention.config.head_dim**-0.5
        text_scores = self._by_sample(self._by_prompt(query) @ text_keys.transpose(-1, -2))
        image_scores = query @ keys.transpose(-1, -2)
        if self.static:
            image_scores = image_scores + self.masks[image.kind][at]
        scores = torch.cat([text_scores, image_scores], dim=-1)  # (sample, head, 1, text block and slots)
        weights = scores.float().softmax(dim=-1).to(query.dtype)
        text_weights, image_weights = weights.split([text_keys.shape[2], keys.shape[2]], dim=-1)
        from_text = self._by_sample(self._by_prompt(text_weights) @ text_values)
        return attention.merge(from_text + image_weights @ values)[:, 0]

    def _by_prompt(self, x: Tensor) -> Tensor:
        """(sample, head, 1, size) to (prompt, head, candidate, size), so that candidates share their text."""
        return x.squeeze(2).unflatten(0, (self.num_prompts, self.num_candidates)).transpose(1, 2)

    def _by_sample(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
