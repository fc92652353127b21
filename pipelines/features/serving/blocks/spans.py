"""The interface of a span of any model: what a server holds, and what a session keeps. Which model has which span.

Axes: stream (what layers pass on: two tensors in the DALL-E model, one in language models), sample, position, hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipelines.features.serving.blocks.weights import PublishedModel

DALLE = "dalle_collab"


class InvalidRequestError(ValueError):
    """A request for something that does not exist, or is out of range or order."""


@dataclass(frozen=True, kw_only=True)
class StackShape:
    """What all spans of a model have in common."""

    num_layers: int
    num_streams: int
    hidden_size: int

    def states(self, samples: int, positions: int) -> tuple[int, int, int, int]:
        """Return the shape of hidden states."""
        return self.num_streams, samples, positions, self.hidden_size


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What language models know about sequences of different lengths."""

    mask: Tensor | None = None
    """(sample, all positions read, with these) uint8, 0 where one is padding; None: there is none."""

    positions: Tensor | None = None
    """(sample or 1, position) int64: at which place of its sequence each position is; None: as they come."""


class SpanSession(Protocol):
    """What one client's generation keeps in a span. Each check comes before memory is taken."""

    def num_bytes(self, body: Mapping[str, object]) -> int:
        """Check a message that takes memory, `open` or `start`, and return how much all of it then takes in all."""

    def expected(self, body: Mapping[str, object]) -> tuple[int, ...]:
        """Check the numbers of a message with states, and return their shape."""

    def prefill(self, states: Tensor, body: Mapping[str, object]) -> Tensor:
        """Read what comes first; return the states behind the span."""

    def start(self, body: Mapping[str, object]) -> None:
        """Begin with a batch of candidates behind what was read; may come again."""

    def step(self, states: Tensor, places: Tensor, padding: Padding) -> Tensor:
        """Read the next places, (sample, step) int64; return the states behind the span."""

    def step_bytes(self, steps: int) -> int:
        """Return how much more memory a step of so many places takes while it lasts."""

    def replay_bytes(self, steps: int) -> int:
        """Return the same of a replay."""

    def replay(self, states: Tensor, num_read: Tensor, padding: Padding) -> Tensor:
        """Read again what a client had read with another server; return the states behind the span.

        `states` are those of all places from the first behind the prompts, `num_read` how many codes of each sample
        count, (sample,) int64; what is behind them does not matter.
        """


class LayerSpan(Protocol):
    """Consecutive layers of a model, with their weights."""

    shape: StackShape
    layers: range
    has_gradients: bool
    """Whether it computes gradients; weights of 8 bits do not."""

    def part(self, layers: range) -> "LayerSpan":
        """Return some of these layers, with the same weights."""

    def session(self, body: Mapping[str, object], prompts: Tensor | None) -> SpanSession:
        """Check the message that opens a session; raises InvalidRequestError. Nothing is allocated yet."""

    def forward(self, states: Tensor, padding: Padding, prompts: Tensor | None) -> Tensor:
        """Run whole sequences through the layers; with autograd if it is enabled."""

    def check_sequence(self, samples: int, positions: int) -> int:
        """Return the bytes that forward and backward take for sequences; raises InvalidRequestError for others."""

    def opening_of_one(self) -> list[dict[str, object]]:
        """Return the messages with which a generation of one sample begins, without the layers and the states."""

    def positions_of_prompt(self) -> int:
        """Return the positions of the shortest prompt."""

    def most_places(self) -> int:
        """Return how many places a generation reads at most."""


def stack_shape(config: Mapping[str, object]) -> StackShape:
    """Return the shape of a published model's layers. ValueError if its blocks cannot be served."""
    if config.get("model_type") == DALLE:
        from modeling_dalle_collab import DalleCollabConfig

        sizes = DalleCollabConfig.from_dict(dict(config))
        return StackShape(num_layers=sizes.num_hidden_layers, num_streams=2, hidden_size=sizes.hidden_size)
    from pipelines.features.serving.blocks.causal_span import causal_shape

    return causal_shape(config)


def load_span(
    model: PublishedModel, layers: range, *, device: torch.device | str = "cpu", weights: str = "float32"
) -> LayerSpan:
    """Read the tensors of these layers, and of no others, and return them ready to serve.

    Raises:
        ValueError: there are no such layers, or the model is of a kind whose blocks cannot be served.
        CheckpointRefusedError: a tensor is not what the run's publisher signed.
    """
    check_layers(model, layers)
    if model.config.get("model_type") == DALLE:
        from pipelines.features.serving.blocks.dalle_span import DalleSpan

        return DalleSpan.load(model, layers, torch.device(device), weights)
    from pipelines.features.serving.blocks.causal_span import CausalSpan

    return CausalSpan.load(model, layers, torch.device(device), weights)


def check_layers(model: PublishedModel, layers: range) -> None:
    """Raise ValueError unless the model has these layers."""
    num_layers = stack_shape(model.config).num_layers
    if not 0 <= layers.start < layers.stop <= num_layers:
        raise ValueError(
            f"{model.name} has the layers 0:{num_layers}, not {layers.start}:{layers.stop}. "
            f"Cure: --blocks 0:{num_layers}, or a part of them"
        )


def tensor_prefixes(config: Mapping[str, object], layers: range) -> list[str]:
    """Return how the names of these layers' tensors begin."""
    if config.get("model_type") == DALLE:
        from pipelines.features.serving.blocks.dalle_span import prefixes_of

        return prefixes_of(config, layers)
    from pipelines.features.serving.blocks.causal_span import body_names

    names = body_names(config)
    return [f"{names.body}.{names.layers}.{layer}." for layer in layers]


def whole_number(body: Mapping[str, object], name: str, low: int, high: int) -> int:
    """Return a number of a message; raises InvalidRequestError unless it is a whole one in [low, high]."""
    value = body.get(name)
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequestError(f"{name} is {str(value)[:20]}, expected a whole number from {low} to {high}.")
    return value
