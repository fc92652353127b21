"""A span of a causal language model of transformers: its own body, with these layers alone and nothing around them.

Axes: stream (one), sample, position, hidden.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from pipelines.features.serving.blocks.dalle_span import add_prompt
from pipelines.features.serving.blocks.spans import (
    InvalidRequestError,
    LayerSpan,
    Padding,
    SpanSession,
    StackShape,
    tensor_prefixes,
    whole_number,
)
from pipelines.features.serving.blocks.weights import PublishedModel

ModuleT = TypeVar("ModuleT", bound=nn.Module)

MOST_SAMPLES, MOST_POSITIONS = 1024, 2**17
BYTES = 4
ACTIVATIONS_OF_A_LAYER = 34
"""Tensors of (position, hidden) that a layer keeps for its backward pass."""

WIDTHS_OF_A_LAYER = 16
"""The same, of what it has in memory at a time without one."""


@dataclass(frozen=True, kw_only=True)
class BodyNames:
    """Where a kind of model keeps its parts."""

    body: str
    layers: str
    norm: str
    positions: str | None = None
    """A table of positions that is added to the embeddings, if there is one."""


LLAMA = BodyNames(body="model", layers="layers", norm="norm")
BODIES: dict[str, BodyNames] = {
    "gpt2": BodyNames(body="transformer", layers="h", norm="ln_f", positions="wpe"),
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
}
"""By `model_type`; a model of another kind may do something between its layers that spans would lose."""


class NoPositions(nn.Module):
    """Stands for a table of positions where they were added by whoever has the embeddings."""

    def forward(self, positions: Tensor) -> Tensor:
        """Return zeros that are added to hidden states."""
        return torch.zeros((), device=positions.device)


def body_names(config: Mapping[str, object]) -> BodyNames:
    """Return where a model's parts are. ValueError for a kind whose blocks cannot be served."""
    kind = config.get("model_type")
    if kind not in BODIES or config.get("scale_attn_by_inverse_layer_idx") or config.get("add_cross_attention"):
        raise ValueError(
            f"The blocks of a model of type {str(kind)[:40]} cannot be served; those of dalle_collab, "
            f"{', '.join(BODIES)} can. Serve the whole model: leave out --blocks"
        )
    return BODIES[str(kind)]


def read_config(config: Mapping[str, object]) -> PreTrainedConfig:
    """Return the configuration of transformers for a published one."""
    body_names(config)
    values = {name: value for name, value in config.items() if name != "model_type"}
    return AutoConfig.for_model(str(config["model_type"]), **values)


def causal_shape(config: Mapping[str, object]) -> StackShape:
    """See `stack_shape`."""
    sizes = read_config(config)
    return StackShape(num_layers=sizes.num_hidden_layers, num_streams=1, hidden_size=sizes.hidden_size)


def part_of_config(config: PreTrainedConfig, layers: range) -> PreTrainedConfig:
    """Return the configuration of a model that has only these layers, and almost no vocabulary."""
    values = config.to_dict()
    values |= dict(num_hidden_layers=len(layers), vocab_size=1, pad_token_id=None, bos_token_id=0, eos_token_id=0)
    values.pop("n_layer", None)
    if (kinds := values.get("layer_types")) is not None:
        values["layer_types"] = kinds[layers.start : layers.stop]
    part = type(config).from_dict(values)
    part._attn_implementation = config._attn_implementation
    return part


class CausalSpan(LayerSpan):
    """Some layers of a language model, in evaluation mode."""

    has_gradients = True

    def __init__(self, body: PreTrainedModel, shape: StackShape, layers: range) -> None:
        self.body, self.shape, self.layers, self.config = body, shape, layers, body.config
        self.device = next(body.parameters()).device

    @classmethod
    def load(cls, model: PublishedModel, layers: range, device: torch.device, weights: str) -> Self:
        if weights != "float32":
            raise ValueError(f"weights is {weights!r}, expected float32 for a language model.")
        names, config = body_names(model.config), read_config(model.config)
        with no_init_weights():
            body = AutoModel.from_config(part_of_config(config, layers), dtype=torch.float32, trust_remote_code=False)
        setattr(body, names.norm, nn.Identity())
        if names.positions is not None:
            setattr(body, names.positions, NoPositions())
        body.set_input_embeddings(nn.Identity())
        before = f"{names.body}.{names.layers}."
        found = model.read(tensor_prefixes(model.config, layers))
        renamed = {}
        for name, tensor in found.items():
            number, _, rest = name.removeprefix(before).partition(".")
            renamed[f"{int(number) - layers.start}.{rest}"] = tensor.to(torch.float32)
        cast("nn.Module", getattr(body, names.layers)).load_state_dict(renamed)
        body.requires_grad_(False).eval().to(device)
        return cls(body, causal_shape(model.config), layers)

    def part(self, layers: range) -> "CausalSpan":
        before, names = layers.start - self.layers.start, BODIES[self.config.model_type]
        body = _renumbered(self.body, before)
        body.config = part_of_config(self.config, range(before, before + len(layers)))
        setattr(body, names.layers, getattr(body, names.layers)[before : before + len(layers)])
        return CausalSpan(body, self.shape, layers)

    def session(self, body: Mapping[str, object], prompts: Tensor | None) -> "CausalSession":
        """See `LayerSpan.session`: `num_samples` sequences of at most `length` positions."""
        return CausalSession(self, body, prompts)

    def forward(self, states: Tensor, padding: Padding, prompts: Tensor | None) -> Tensor:
        return self.run(states, padding, prompts, None)

    def run(self, states: Tensor, padding: Padding, prompts: Tensor | None, cache: DynamicCache | None) -> Tensor:
        """Read states behind those in the cache, if there is one."""
        hidden, length = states.to(self.device)[0], states.shape[2]
        seen = 0 if cache is None else cache.get_seq_length()
        positions = padding.positions
        if positions is None:
            positions = torch.arange(seen, seen + length)[None]
        with self._adding(prompts if seen == 0 else None):
            out = self.body(
                inputs_embeds=hidden,
                attention_mask=None if padding.mask is None else padding.mask.to(self.device, torch.int64),
                position_ids=positions.to(self.device),
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return out.last_hidden_state[None]

    @contextmanager
    def _adding(self, prompts: Tensor | None) -> Iterator[None]:
        """Add the learned prompt of each layer to the first positions of what it reads."""
        handles = []
        if prompts is None:
            yield
            return
        for layer, prompt in zip(self.blocks, prompts, strict=True):

            def add(_: nn.Module, inputs: tuple[Tensor, ...], prompt: Tensor = prompt) -> tuple[Tensor, ...]:
                return (add_prompt(inputs[0], prompt), *inputs[1:])

            handles.append(layer.register_forward_pre_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def opening_of_one(self) -> list[dict[str, object]]:
        return [dict(do="open", num_samples=1, length=self.most_places())]

    def positions_of_prompt(self) -> int:
        return 1

    def most_places(self) -> int:
        return getattr(self.config, "max_position_embeddings", None) or MOST_POSITIONS

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers."""
        return cast("nn.ModuleList", getattr(self.body, BODIES[self.config.model_type].layers))

    def check_sequence(self, samples: int, positions: int) -> int:
        most = self.most_places()
        if samples < 1 or not 1 <= positions <= most:
            raise InvalidRequestError(f"{samples} sequences have {positions} positions, expected 1 to {most}.")
        scores = 3 * self.config.num_attention_heads * positions * positions
        a_layer = ACTIVATIONS_OF_A_LAYER * positions * self.config.hidden_size + scores
        return samples * BYTES * len(self.layers) * a_layer


def _renumbered(module: ModuleT, before: int) -> ModuleT:
    """Return a module with the same parameters whose layers count themselves without those before."""
    other = copy.copy(module)
    parts = {name: None if part is None else _renumbered(part, before) for name, part in module._modules.items()}
    object.__setattr__(other, "_modules", parts)
    if (layer := getattr(module, "layer_idx", None)) is not None:
        other.layer_idx = layer - before
    return other


class CausalSession(SpanSession):
    """The keys and values of one generation in a span."""

    def __init__(self, span: CausalSpan, body: Mapping[str, object], prompts: Tensor | None) -> None:
        self.span, self.prompts = span, prompts
        self.num_samples = whole_number(body, "num_samples", 1, MOST_SAMPLES)
        self.length = whole_number(body, "length", 1, span.most_places())
        if prompts is not None and prompts.shape[1] > self.length:
            raise InvalidRequestError("Learned prompts are longer than the sequence.")
        self.cache = DynamicCache(config=span.config)

    def num_bytes(self, body: Mapping[str, object]) -> int:
        if body.get("do") != "open":
            self.start(body)
        config = self.span.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # Appending to keys and values copies those of one layer.
        pairs = (len(self.span.layers) + 1) * 2 * heads * size * self.length * self.num_samples * BYTES
        return pairs + (0 if self.prompts is None else self.prompts.numel() * BYTES)

    def expected(self, body: Mapping[str, object]) -> tuple[int, ...]:
        left = self.length - self.cache.get_seq_length()
        if body.get("do") == "prefill":
            raise InvalidRequestError("A language model's session has no prompts to share, expected a step.")
        name = "steps" if body.get("do") == "step" else "places"
        return self.span.shape.states(self.num_samples, whole_number(body, name, 1, left))

    def prefill(self, states: Tensor, body: Mapping[str, object]) -> Tensor:
        """Sequences have no prompts that several candidates share: see `expected`."""
        raise NotImplementedError

    def start(self, body: Mapping[str, object]) -> None:
        """The same."""
        raise InvalidRequestError("A language model's session has no candidates to start.")

    @torch.no_grad()
    def step(self, states: Tensor, places: Tensor, padding: Padding) -> Tensor:
        """See `SpanSession.step`: the places behind all that was read."""
        seen = self.cache.get_seq_length()
        if not (places == torch.arange(seen, seen + states.shape[2])).all():
            raise InvalidRequestError(f"Places begin at {int(places[0, 0])}, expected {seen}, behind the last.")
        return self.span.run(states, padding, self.prompts, self.cache)

    def step_bytes(self, steps: int) -> int:
        """See `SpanSession.step_bytes`: the mask, and what a layer makes of what it reads."""
        places = self.cache.get_seq_length() + steps
        return self.num_samples * steps * BYTES * (2 * places + WIDTHS_OF_A_LAYER * self.span.shape.hidden_size)

    def replay_bytes(self, steps: int) -> int:
        return self.step_bytes(steps)

    @torch.no_grad()
    def replay(self, states: Tensor, num_read: Tensor, padding: Padding) -> Tensor:
        """See `SpanSession.replay`: one pass over all of it."""
        if self.cache.get_seq_length():
            raise InvalidRequestError("A replay comes first in a language model's session.")
        return self.span.run(states, padding, self.prompts, self.cache)

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows in place of all: (sample,) int64."""
        if tuple(rows.shape) != (self.num_samples,) or not ((rows >= 0) & (rows < self.num_samples)).all():
            raise InvalidRequestError(f"Rows are out of range, expected {self.num_samples} in [0, {self.num_samples}).")
        self.cache.reorder_cache(cast("torch.LongTensor", rows.to(self.span.device)))
