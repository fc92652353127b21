"""A span of the DALL-E model's layers, which pass on two streams.

Axes: stream, prompt, sample, position, place, hidden.
"""

import copy
from collections.abc import Mapping
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from modeling_dalle_collab import DalleCollabConfig
from modeling_dalle_collab.attention_dalle_collab import AttentionTables
from modeling_dalle_collab.blocks_dalle_collab import DalleCollabStack
from modeling_dalle_collab.cache_dalle_collab import LIST_FIELDS, GenerationCache, Prefix, num_slots, read_streams
from modeling_dalle_collab.linear_dalle_collab import Products, use_products
from modeling_dalle_collab.packed_dalle_collab import Int8Linear, packed_products, replace_by_int8
from pipelines.features.serving.blocks.spans import (
    InvalidRequestError,
    LayerSpan,
    Padding,
    SpanSession,
    StackShape,
    whole_number,
)
from pipelines.features.serving.blocks.weights import PublishedModel

STACK = "model.stack."
MOST_PROMPTS, MOST_SAMPLES, MOST_WINDOW = 256, 1024, 64
REPLAY_WINDOW = 32
"""Places of a sample that a replay reads in one pass."""

BYTES = 4
ACTIVATIONS_OF_A_LAYER = 40
"""Tensors of (position, hidden) that a layer's backward pass holds at most, feed-forward layers included."""


class DalleSpan(LayerSpan):
    """Some layers of a stack whose other layers have no memory."""

    def __init__(self, stack: DalleCollabStack, layers: range) -> None:
        self.stack, self.layers, config = stack, layers, stack.config
        self.has_gradients = not any(isinstance(module, Int8Linear) for module in stack.modules())
        self.shape = StackShape(num_layers=config.num_hidden_layers, num_streams=2, hidden_size=config.hidden_size)
        self.config = config
        self._whole = self
        self._products: Products | None = None
        self.device = next(stack.layers[layers.start].parameters()).device
        self.tables = AttentionTables.build(config, self.device, torch.float32)

    @classmethod
    def load(cls, model: PublishedModel, layers: range, device: torch.device, weights: str) -> Self:
        """See `load_span`; `weights` may be float32 or int8."""
        config = DalleCollabConfig.from_dict(dict(model.config))
        config._attn_implementation = "sdpa"
        names = prefixes_of(model.config, layers)
        with torch.device("meta"):
            stack = DalleCollabStack(config)
        tensors = {
            name.removeprefix(STACK): tensor.to(device, torch.float32) for name, tensor in model.read(names).items()
        }
        found = stack.load_state_dict(tensors, strict=False, assign=True)
        missing = [name for name in found.missing_keys if f"{STACK}{name}".startswith(tuple(names))]
        if missing or found.unexpected_keys:
            raise ValueError(f"The weights of {model.name} lack {', '.join(missing[:3])}: they do not fit config.json.")
        stack.requires_grad_(False).eval()
        if weights == "int8":
            for group in dict.fromkeys(group for _, _, group in stack.parts_of_layers(layers)):
                replace_by_int8(group)
        elif weights != "float32":
            raise ValueError(f"weights is {weights!r}, expected float32 or int8.")
        return cls(stack, layers)

    def part(self, layers: range) -> "DalleSpan":
        part = copy.copy(self)
        part.layers = layers
        return part

    def session(self, body: Mapping[str, object], prompts: Tensor | None) -> "DalleSession":
        """See `LayerSpan.session`: `num_prompts` captions, each with `num_places` image codes behind it."""
        return DalleSession(self, body, prompts)

    def forward(self, states: Tensor, padding: Padding, prompts: Tensor | None) -> Tensor:
        """See `LayerSpan.forward`; activations are recomputed in the backward pass as the configuration says."""
        first, second = states.to(self.device).unbind(0)
        if prompts is None:
            first, second = self.stack.run_layers(first, second, self.layers, self.tables)
        else:
            for layer, prompt in zip(self.layers, prompts, strict=True):
                first, second = add_prompt(first, prompt), add_prompt(second, prompt)
                first, second = self.stack.run_layers(first, second, range(layer, layer + 1), self.tables)
        return torch.stack([first, second])

    def check_sequence(self, samples: int, positions: int) -> int:
        """See `LayerSpan.check_sequence`: a text block and whole rows of the image."""
        config = self.config
        rows, rest = divmod(positions - config.text_block_length, config.image_grid_size)
        if samples < 1 or rest or not 0 <= rows <= config.image_grid_size:
            raise InvalidRequestError(
                f"{samples} sequences have {positions} positions, expected {config.text_block_length} plus a multiple "
                f"of {config.image_grid_size} up to {config.num_image_codes}."
            )
        scores = config.num_attention_heads * positions * (config.text_block_length + 2 * config.image_grid_size)
        stored = 1 if config.recompute == "reversible" else len(self.layers)
        a_layer = ACTIVATIONS_OF_A_LAYER * positions * config.hidden_size + 3 * scores
        return samples * BYTES * (stored * a_layer + 8 * positions * config.hidden_size)

    def opening_of_one(self) -> list[dict[str, object]]:
        return [
            dict(do="open", num_prompts=1, num_places=0),
            dict(do="prefill", prompts=1),
            dict(do="start", num_candidates=1, window=1),
        ]

    def positions_of_prompt(self) -> int:
        return self.config.text_block_length

    def most_places(self) -> int:
        return self.config.num_image_codes - 1

    @property
    def products(self) -> Products:
        """Products with this span's weights in a layout that is faster for some rows; made once, when first needed."""
        whole = self._whole
        if whole._products is None:
            used = dict.fromkeys(group for _, _, group in self.stack.parts_of_layers(whole.layers))
            whole._products = packed_products(module for group in used for module in group.modules())
        return whole._products


def prefixes_of(values: Mapping[str, object], layers: range) -> list[str]:
    """See `tensor_prefixes`: the layers' own parameters, and those of the groups that share their weights."""
    groups = sorted(set(DalleCollabConfig.from_dict(dict(values)).layer_groups[layers.start : layers.stop]))
    return [f"{STACK}layers.{layer}." for layer in layers] + [f"{STACK}groups.{group}." for group in groups]


def add_prompt(stream: Tensor, prompt: Tensor) -> Tensor:
    """Add a learned prompt (place, hidden) to the first positions of a stream (sample, position, hidden)."""
    length = prompt.shape[0]
    return torch.cat([stream[:, :length] + prompt, stream[:, length:]], dim=1)


class DalleSession(SpanSession):
    """The caches of one generation in a span."""

    def __init__(self, span: DalleSpan, body: Mapping[str, object], prompts: Tensor | None) -> None:
        self.span, self.config, self.prompts = span, span.config, prompts
        self.num_prompts = whole_number(body, "num_prompts", 1, MOST_PROMPTS)
        self.num_places = whole_number(body, "num_places", 0, self.config.num_image_codes - 1)
        if prompts is not None and prompts.shape[1] > self.config.text_block_length:
            raise InvalidRequestError("Learned prompts are longer than the text.")
        self.prefix: Prefix | None = None
        self.cache: GenerationCache | None = None
        self.products: Products = {}
        self.begun = self.read = torch.empty(0, dtype=torch.int64)

    def num_bytes(self, body: Mapping[str, object]) -> int:
        config, layers = self.config, self.span.layers
        pair = 2 * config.num_attention_heads * config.head_dim * BYTES
        prefix = len(layers) * (
            pair * (config.text_block_length + self.num_places) + self.num_places * config.hidden_size * BYTES
        )
        total = 2 * self.num_prompts * prefix  # joining two prefixes takes both
        if self.prompts is not None:
            total += self.prompts.numel() * BYTES
        return total if body.get("do") == "open" else total + self._cache_bytes(*self._starting(body))

    def _starting(self, body: Mapping[str, object]) -> tuple[int, int]:
        most = MOST_SAMPLES // self.num_prompts
        return whole_number(body, "num_candidates", 1, most), whole_number(body, "window", 1, MOST_WINDOW)

    def _cache_bytes(self, num_candidates: int, window: int) -> int:
        config = self.config
        pair = 2 * config.num_attention_heads * config.head_dim * BYTES
        kinds = config.layer_kinds[self.span.layers.start : self.span.layers.stop]
        samples, ring = self.num_prompts * num_candidates, config.image_grid_size + window
        codes = sum(num_slots(config, kind, window) for kind in kinds)
        tables = sum(12 * config.num_image_codes * num_slots(config, kind, window) for kind in set(kinds))
        shifted = len(kinds) * (samples * ring + 1) * config.hidden_size * BYTES
        return samples * codes * pair + shifted + tables

    def expected(self, body: Mapping[str, object]) -> tuple[int, ...]:
        shape, config, wanted = self.span.shape, self.config, body.get("do")
        if wanted == "prefill":
            done = 0 if self.prefix is None else len(self.prefix.hidden)
            prompts = whole_number(body, "prompts", 1, self.num_prompts - done)
            rows = -(-self.num_places // config.image_grid_size)
            return shape.states(prompts, config.text_block_length + rows * config.image_grid_size)
        if self.cache is None:
            raise InvalidRequestError("There is no batch of candidates yet, expected a start.")
        num_samples = len(self.cache.samples)
        if wanted == "step":
            return shape.states(num_samples, whole_number(body, "steps", 1, self.cache.window))
        places = whole_number(body, "places", 1, config.num_image_codes - self.num_places)
        return shape.states(num_samples, places)

    @torch.no_grad()
    def prefill(self, states: Tensor, body: Mapping[str, object]) -> Tensor:
        """See `SpanSession.prefill`: captions and given codes, in any number of parts."""
        first, second = states.to(self.span.device).unbind(0)
        with use_products(self.span.products if body.get("is_packed") is True else {}):
            prefix, first, second = self._read(first, second)
        self.prefix = prefix if self.prefix is None else self.prefix.join(prefix)
        return torch.stack([first, second])

    def _read(self, first: Tensor, second: Tensor) -> tuple[Prefix, Tensor, Tensor]:
        span = self.span
        if self.prompts is None:
            return read_streams(span.stack, first, second, self.num_places, span.layers)
        parts = []
        for layer, prompt in zip(span.layers, self.prompts, strict=True):
            first, second = add_prompt(first, prompt), add_prompt(second, prompt)
            part, first, second = read_streams(span.stack, first, second, self.num_places, range(layer, layer + 1))
            parts.append(part)
        lists = {name: [tensor for part in parts for tensor in getattr(part, name)] for name in LIST_FIELDS}
        return Prefix(hidden=parts[-1].hidden, **lists), first, second

    def start(self, body: Mapping[str, object]) -> None:
        if self.prefix is None or len(self.prefix.hidden) != self.num_prompts:
            raise InvalidRequestError(f"Not all of the {self.num_prompts} prompts have been read.")
        num_candidates, window = self._starting(body)
        self.cache = None
        self.cache = self._new_cache(num_candidates, window, body.get("is_static") is True)
        self.products = self.span.products if body.get("is_packed") is True else {}
        self.begun = self.read = torch.full((len(self.cache.samples),), self.num_places, dtype=torch.int64)

    def _new_cache(self, num_candidates: int, window: int, static: bool) -> GenerationCache:
        assert self.prefix is not None, "checked by start"
        return GenerationCache(
            self.span.stack, self.prefix, num_candidates, window=window, static=static, layers=self.span.layers
        )

    @torch.no_grad()
    def step(self, states: Tensor, places: Tensor, padding: Padding) -> Tensor:
        """See `SpanSession.step`. Each sample's places are neighbours, behind which nothing is missing."""
        assert self.cache is not None, "checked by `expected`"
        self._check_places(places)
        first, second = states.to(self.span.device).unbind(0)
        with use_products(self.products):
            streams = self.cache.step_streams(first, second, places.to(self.span.device))
        self.begun, self.read = places[:, 0], places[:, -1] + 1
        return torch.stack(streams)

    def _check_places(self, places: Tensor) -> None:
        last = self.config.num_image_codes - 1
        # What is behind the last place is read again and again by samples that are done before others.
        are_neighbours = (places[:, 1:] == (places[:, :-1] + 1).clamp(max=last)).all()
        first = places[:, 0]
        in_order = ((self.begun <= first) & (first <= self.read) & (places <= last).all(dim=1)).all()
        if not (are_neighbours and in_order):
            raise InvalidRequestError(
                f"Places begin at {first.tolist()[:4]}, expected neighbours, and for each sample none before "
                f"{self.begun.tolist()[:4]} or after {self.read.tolist()[:4]}."
            )

    def step_bytes(self, steps: int) -> int:
        """See `SpanSession.step_bytes`: a step has no more places than a window, which is little."""
        return 0

    def replay_bytes(self, steps: int) -> int:
        assert self.cache is not None, "checked by `expected`"
        return self._cache_bytes(self.cache.num_candidates, REPLAY_WINDOW)

    @torch.no_grad()
    def replay(self, states: Tensor, num_read: Tensor, padding: Padding) -> Tensor:
        """See `SpanSession.replay`: many places in one pass, then a cache for small passes of the newest of them."""
        assert self.cache is not None, "checked by `expected`"
        first_place, count = self.num_places, states.shape[2]
        if (
            tuple(num_read.shape) != (states.shape[1],)
            or not ((num_read >= first_place) & (num_read <= first_place + count)).all()
        ):
            raise InvalidRequestError(f"num_read is out of range, expected {first_place} to {first_place + count}.")
        old = self.cache
        self.cache = None
        device, last = self.span.device, self.config.num_image_codes - 1
        large = self._new_cache(old.num_candidates, REPLAY_WINDOW, False)
        states = F.pad(states, (0, 0, 0, -count % REPLAY_WINDOW)).to(device)
        answer = torch.zeros_like(states)
        # A sample that has no more codes reads its last ones again, so that nothing it needs is overwritten.
        last_begin = (num_read - first_place - 1).clamp(min=0) // REPLAY_WINDOW * REPLAY_WINDOW
        with use_products(self.products):
            for begin in range(0, int((num_read - first_place).max()), REPLAY_WINDOW):
                offsets = (last_begin.clamp(max=begin)[:, None] + torch.arange(REPLAY_WINDOW)).to(device)
                at = offsets[None, :, :, None].expand(2, -1, -1, states.shape[3])
                first, second = states.gather(2, at).unbind(0)
                places = (first_place + offsets).clamp(max=last)
                answer.scatter_(2, at, torch.stack(large.step_streams(first, second, places)))
        self.cache = large.with_window(old.window, num_read.to(device)) if old.window != REPLAY_WINDOW else large
        self.cache.static = old.static
        self.begun = self.read = num_read
        return answer[:, :, :count]
