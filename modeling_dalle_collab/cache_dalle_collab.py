"""The cache of generation: captions and image prompts read once, and of images what each layer's mask still sees.

All of it is for consecutive layers, usually all, between which nothing but the two residual streams is passed on.

Axes: prompt, candidate, sample (all candidates of all prompts, prompt-major), step (neighbouring places of a sample,
read together), head, slot, head_size, hidden. The keys and values of the text are kept once for each prompt, whatever
the number of candidates.
"""

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_dalle_collab import (
    AttentionTables,
    DalleCollabAttention,
    attend_with_sum,
    grid_offsets_visible,
    num_band_lines,
    rotary_table,
)
from .blocks_dalle_collab import DalleCollabLayer, DalleCollabSharedGroup, DalleCollabStack, shift_tokens
from .compiled_dalle_collab import compiled
from .configuration_dalle_collab import DalleCollabConfig
from .linear_dalle_collab import Products, is_plain_linear
from .packed_dalle_collab import packed_products


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
    """(prompt, hidden): the mean of the streams at the last position; behind all layers it predicts the next code."""

    @property
    def num_places(self) -> int:
        """Number of image codes that have been read."""
        return self.shifted[0].shape[1] if self.shifted else 0

    def select(self, rows: Tensor) -> "Prefix":
        """Return a prefix of these prompts, some perhaps repeatedly: (row,) int64."""
        lists = {name: [part[rows] for part in getattr(self, name)] for name in LIST_FIELDS}
        return Prefix(hidden=self.hidden[rows], **lists)

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
    return read_streams(stack, x, x, num_places)[0]


def read_streams(
    stack: DalleCollabStack, first: Tensor, second: Tensor, num_places: int = 0, layers: range | None = None
) -> tuple[Prefix, Tensor, Tensor]:
    """The same for some layers, from the streams before them; return the streams behind them as well."""
    config, block = stack.config, stack.config.text_block_length
    tables = AttentionTables.build(config, first.device, first.dtype)
    length = first.shape[1]
    lists: dict[str, list[Tensor]] = {name: [] for name in LIST_FIELDS}

    def keep(name: str, part: Tensor) -> None:
        text, image = part[:, :, :block], part[:, :, block : block + num_places]
        lists[f"text_{name}"].append(text.contiguous())
        lists[f"image_{name}"].append(image.contiguous())

    def shift(normed: Tensor) -> Tensor:
        lists["shifted"].append(normed[:, block : block + num_places, : config.hidden_size // 2].contiguous())
        return shift_tokens(normed, config)

    for layer, kind, group in stack.parts_of_layers(layers):
        query, key, value = group.attention.project(shift(layer.attention.norm(second)), tables.rotations[:length])
        keep("keys", key)
        keep("values", value)
        if length == block:
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            attended = group.attention.attend(query, key, value, kind, tables)
        first = first + layer.attention.scale * group.attention.merge(attended)
        second = second + layer.feed_forward.scale * group.feed_forward(shift(layer.feed_forward.norm(first)))
    last = block + num_places - 1
    return Prefix(hidden=(first[:, last] + second[:, last]) * 0.5, **lists), first, second


def num_slots(config: DalleCollabConfig, kind: str, window: int) -> int:
    """Return how many codes a layer of this kind keeps, if passes read up to `window` places of a sample."""
    if kind == "column":
        return config.num_image_codes
    return min(config.num_image_codes, num_band_lines(config, kind) * config.image_grid_size + window - 1)


class Slots:
    """Where the layers of one kind keep the codes that they can still see, and which of them a place sees.

    A row layer keeps the current row, a convolutional one the rows that its window reaches, in a ring; a column layer
    keeps everything. A place of a row layer reads the whole ring, the others pick what they see.
    """

    def __init__(self, config: DalleCollabConfig, kind: str, window: int, device: torch.device) -> None:
        size, places = config.image_grid_size, torch.arange(config.num_image_codes, device="cpu")
        self.number = num_slots(config, kind, window)
        rows, columns = places.div(size, rounding_mode="floor"), places % size
        offsets = rows[:, None] - rows, columns[:, None] - columns
        query, key = grid_offsets_visible(config, kind, *offsets).nonzero(as_tuple=True)
        self.of_place = (places % self.number).to(device)
        self.picked: Tensor | None = None
        at = key % self.number
        if kind != "row":
            first = torch.searchsorted(query, places)
            at = torch.arange(len(query), device="cpu") - first[query]
            self.picked = places.new_zeros(len(places), int(at.max()) + 1)
            self.picked[query, at] = key % self.number
            self.picked = self.picked.to(device)
        num_read = self.number if self.picked is None else self.picked.shape[1]
        bias = torch.full((len(places), num_read), -torch.inf, device="cpu")
        bias[query, at] = 0.0
        self.bias = bias.to(device)
        """0 where a place (first axis) sees what it reads, else -inf."""


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """Which slots some places of every sample write and read."""

    written: Tensor
    """(sample x step) int64, into slots of all samples one after the other."""
    picked: Tensor | None
    """(sample x step x read) int64, or None to read all slots of the sample."""
    bias: Tensor
    """(group, 1, query, read), where a group's queries read the same slots."""


class GenerationCache:
    """The state of one batch of candidates between two passes, of all layers or of some; each belongs to one prompt.

    A pass reads up to `window` neighbouring places of each sample. What it writes for guesses that turn out wrong is
    written again when these places are read again. With `static` every pass works on tensors of the same sizes, so that
    it can be compiled once or captured as a CUDA graph; it then also reads what is not visible, and masks it.
    """

    def __init__(
        self,
        stack: DalleCollabStack,
        prefix: Prefix,
        num_candidates: int,
        *,
        window: int = 1,
        static: bool = False,
        compiled: bool = False,
        layers: range | None = None,
    ) -> None:
        self.stack, self.prefix, self.static, config = stack, prefix, static, stack.config
        self.compiled = compiled
        self.layers, self.window = layers or range(config.num_hidden_layers), window
        device = prefix.hidden.device
        self.num_prompts, self.num_candidates = len(prefix.hidden), num_candidates
        num_samples = self.num_prompts * num_candidates
        self.samples = torch.arange(num_samples, device=device)
        self.rotations = rotary_table(config, device)[config.text_block_length :]
        self.kinds = config.layer_kinds[self.layers.start : self.layers.stop]
        self.slots = {kind: Slots(config, kind, window, device) for kind in dict.fromkeys(self.kinds)}
        self.images = [self._image_pairs(layer, kind) for layer, kind in enumerate(self.kinds)]
        self.ring = config.image_grid_size + window
        self.neighbours = self._neighbours(config).to(device)
        self.shifted = [self._shift_ring(branch) for branch in range(2 * len(self.layers))]

    def _image_pairs(self, layer: int, kind: str) -> Tensor:
        """Return keys and values of a layer's image codes: (sample x slot, 2 x head, head_size)."""
        prefix, number, config = self.prefix, self.slots[kind].number, self.stack.config
        pairs = prefix.hidden.new_zeros(len(self.samples), number, 2 * config.num_attention_heads, config.head_dim)
        if prefix.num_places:
            first = max(0, prefix.num_places - number)
            read = torch.cat([prefix.image_keys[layer], prefix.image_values[layer]], dim=1)[:, :, first:]
            slots = self.slots[kind].of_place[first : prefix.num_places]
            pairs[:, slots] = read.transpose(1, 2).repeat_interleave(self.num_candidates, dim=0)
        return pairs.flatten(0, 1)

    def _shift_ring(self, branch: int) -> Tensor:
        """Return what the token shift passes on, (sample x ring and 1, hidden / 2); the last row is zero."""
        prefix, size = self.prefix, self.stack.config.hidden_size // 2
        kept = prefix.hidden.new_zeros(len(self.samples) * self.ring + 1, size)
        if prefix.num_places:
            places = torch.arange(max(0, prefix.num_places - self.ring), prefix.num_places, device=kept.device)
            read = prefix.shifted[branch][:, places].repeat_interleave(self.num_candidates, dim=0)
            kept[:-1].view(len(self.samples), self.ring, size)[:, places % self.ring] = read
        return kept

    def _neighbours(self, config: DalleCollabConfig) -> Tensor:
        """Return the slots in the ring of the codes above and on the left: (place, 2), -1 outside the grid."""
        places, size = torch.arange(config.num_image_codes, device="cpu"), config.image_grid_size
        above = torch.where(places < size, -1, (places - size) % self.ring)
        left = torch.where(places % size == 0, -1, (places - 1) % self.ring)
        return torch.stack([above, left], dim=1)

    def num_bytes(self) -> int:
        """Return the memory of all keys and values, text and image."""
        tensors = [*self.prefix.text_keys, *self.prefix.text_values, *self.images]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def first_hidden(self) -> Tensor:
        """Return the state that predicts the first image code behind the prefix: (sample, hidden)."""
        return self.prefix.hidden.repeat_interleave(self.num_candidates, dim=0)

    def step(self, x: Tensor, places: Tensor) -> Tensor:
        """Read embedded codes, (sample, step, hidden), of `places`, (sample, step), neighbours in raster order.

        Returns the states that predict the code behind each, in the same shape. All codes before these places must have
        been read.
        """
        first, second = self.step_streams(x, x, places)
        return (first + second) * 0.5

    def step_streams(self, first: Tensor, second: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the streams before the layers to those behind them."""
        readings = {kind: self._reading(slots, places) for kind, slots in self.slots.items()}
        rotations = self.rotations[places]
        of_sample = self.samples[:, None] * self.ring
        written = (of_sample + places % self.ring).flatten()
        around = self.neighbours[places]
        around = torch.where(around < 0, len(self.samples) * self.ring, around + of_sample[:, :, None])
        # Every row of the ring is two quarters of the channels: those for the code below, and for the one on the right.
        passed_on = (2 * around + torch.arange(2, device=around.device)).flatten()

        run_layer = compiled(_layer_step) if self.compiled else _layer_step
        for index, (layer, kind, group) in enumerate(self.stack.parts_of_layers(self.layers)):
            first, second = run_layer(
                first, second, layer, group, kept=self.images[index], text_keys=self.prefix.text_keys[index],
                text_values=self.prefix.text_values[index], passed=self.shifted[2 * index : 2 * index + 2],
                rotations=rotations, reading=readings[kind], written=written, passed_on=passed_on,
            )  # fmt: skip
        return first, second

    def select(self, rows: Tensor) -> "GenerationCache":
        """Return a cache of its own that goes on with these samples, (row,) int64, one for each prompt."""
        other = GenerationCache(
            self.stack, self.prefix.select(rows.div(self.num_candidates, rounding_mode="floor")), 1,
            window=self.window, static=self.static, compiled=self.compiled, layers=self.layers,
        )  # fmt: skip
        for kept, target in zip(self.images, other.images, strict=True):
            target.copy_(kept.unflatten(0, (len(self.samples), -1))[rows].flatten(0, 1))
        for kept, target in zip(self.shifted, other.shifted, strict=True):
            target[:-1].copy_(kept[:-1].unflatten(0, (len(self.samples), -1))[rows].flatten(0, 1))
        return other

    def with_window(self, window: int, num_read: Tensor) -> "GenerationCache":
        """Return a cache for smaller passes with what this one has read: (sample,) `num_read` codes of each sample.

        This one may hold codes behind these, within its own window; they are not taken over.
        """
        other = GenerationCache(
            self.stack, self.prefix, self.num_candidates, window=window, static=self.static, compiled=self.compiled,
            layers=self.layers,
        )  # fmt: skip
        size = self.ring - self.window
        for kept, target, kind in zip(self.images, other.images, self.kinds, strict=True):
            numbers = self.slots[kind].number, other.slots[kind].number
            self._copy_newest(kept, target, numbers, num_slots(self.stack.config, kind, 1), num_read)
        for kept, target in zip(self.shifted, other.shifted, strict=True):
            self._copy_newest(kept, target, (self.ring, other.ring), size, num_read)
        return other

    def _copy_newest(
        self, source: Tensor, target: Tensor, numbers: tuple[int, int], count: int, num_read: Tensor
    ) -> None:
        """Copy the newest `count` of the codes read, from rings of the first of two numbers to those of the second."""
        places = num_read[:, None] - 1 - torch.arange(count, device=num_read.device)
        of_sample = self.samples[:, None].expand_as(places)[places >= 0]
        places = places[places >= 0]
        source_rows, target_rows = (of_sample * number + places % number for number in numbers)
        target[target_rows] = source[source_rows]

    def _reading(self, slots: Slots, places: Tensor) -> _Reading:
        of_sample = self.samples[:, None] * slots.number
        written = (of_sample + slots.of_place[places]).flatten()
        bias = slots.bias[places].to(self.prefix.hidden.dtype)  # (sample, step, read)
        if slots.picked is None:
            return _Reading(written=written, picked=None, bias=bias[:, None])
        number = bias.shape[2] if self.static else int((bias == 0).sum(dim=2).max())
        picked = (slots.picked[places] + of_sample[:, :, None])[:, :, :number]
        return _Reading(written=written, picked=picked.flatten(), bias=bias.flatten(0, 1)[:, None, None, :number])


def _layer_step(
    first: Tensor,
    second: Tensor,
    layer: DalleCollabLayer,
    group: DalleCollabSharedGroup,
    *,
    kept: Tensor,
    text_keys: Tensor,
    text_values: Tensor,
    passed: list[Tensor],
    rotations: Tensor,
    reading: _Reading,
    written: Tensor,
    passed_on: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run one layer over some places: streams, (sample, step, hidden), to the same."""

    def shift(normed: Tensor, ring: Tensor) -> Tensor:
        half = ring.shape[1]
        ring.index_copy_(0, written, normed[..., :half].flatten(0, 1))
        seen = ring.view(-1, half // 2).index_select(0, passed_on).view(*normed.shape[:2], half)
        return torch.cat([seen, normed[..., half:]], dim=-1)

    shifted = shift(layer.attention.norm(second), passed[0])
    attended = _attend(group.attention, shifted, rotations, kept, text_keys, text_values, reading)
    first = torch.addcmul(first, layer.attention.scale, attended)
    shifted = shift(layer.feed_forward.norm(first), passed[1])
    return first, torch.addcmul(second, layer.feed_forward.scale, group.feed_forward(shifted))


def _attend(
    attention: DalleCollabAttention,
    x: Tensor,
    rotations: Tensor,
    kept: Tensor,
    text_keys: Tensor,
    text_values: Tensor,
    reading: _Reading,
) -> Tensor:
    num_heads = attention.config.num_attention_heads
    query, pairs = attention.rotated(x, rotations).tensor_split([num_heads], dim=2)  # (sample, step, heads, ...)
    kept.index_copy_(0, reading.written, pairs.flatten(0, 1))
    read = kept if reading.picked is None else kept.index_select(0, reading.picked)
    groups, queries = reading.bias.shape[0], reading.bias.shape[2]
    keys, values = read.view(groups, -1, 2 * num_heads, read.shape[-1]).transpose(1, 2).chunk(2, dim=1)
    by_group = query.reshape(groups, queries, *query.shape[2:]).transpose(1, 2)
    image, image_sum = attend_with_sum(by_group, keys, values, reading.bias)
    by_prompt = query.reshape(len(text_keys), -1, *query.shape[2:]).transpose(1, 2)
    text, text_sum = attend_with_sum(by_prompt, text_keys, text_values)
    # Two softmaxes over parts are one over the whole, weighted by their sums.
    image, image_sum, text, text_sum = (
        part.transpose(1, 2).reshape(*query.shape[:3], -1) for part in (image, image_sum, text, text_sum)
    )
    share_of_text = (text_sum - image_sum).sigmoid().to(image.dtype)
    return attention.merge(torch.lerp(image, text, share_of_text).transpose(1, 2))


class GenerationLayers:
    """The layers as generation uses them. Others can stand in for them, with the same methods, on other machines."""

    def __init__(self, stack: DalleCollabStack) -> None:
        self.stack = stack

    def can_be_captured(self) -> bool:
        """Return whether steps can be CUDA graphs: all weights are on a GPU and used as they are."""
        leaves = [module for module in self.stack.groups.modules() if not any(module.children())]
        return all(is_plain_linear(leaf) and leaf.weight.device.type == "cuda" for leaf in leaves)

    def read(self, x: Tensor, num_places: int) -> Prefix:
        """Read embedded prompts; see `read_prefix`."""
        return read_prefix(self.stack, x, num_places)

    def open(
        self, prefix: Prefix, num_candidates: int, *, window: int, static: bool, compiled: bool
    ) -> GenerationCache:
        """Return the state of a batch of candidates; see `GenerationCache`."""
        return GenerationCache(self.stack, prefix, num_candidates, window=window, static=static, compiled=compiled)

    def packed(self) -> Products:
        """Return products with the layers' weights, packed."""
        return packed_products(self.stack.groups.modules())
