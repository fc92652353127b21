"""Layers on other machines as modules: forward and backward, with what is one's own between them.

Axes: stream, sample, position, hidden.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.features.serving.blocks import codecs
from pipelines.features.serving.blocks.client.audits import BlockAudits
from pipelines.features.serving.blocks.client.chain_session import LOST, ChainSession, states_of
from pipelines.features.serving.blocks.client.route import Route
from pipelines.features.serving.blocks.routing import Hop
from pipelines.features.serving.blocks.spans import StackShape

HISTORY_BYTES = 2**30
Tensors = Mapping[str, Tensor]


class RemoteLayers(nn.Module):
    """All layers of a model. A slice of it is a module: `layers[0:6](hidden)`."""

    def __init__(
        self, route: Route, shape: StackShape, *, codec: str = codecs.FLOAT32, history_bytes: int = HISTORY_BYTES
    ) -> None:
        super().__init__()
        codecs.check_codec(codec)
        self.route, self.shape, self.codec, self.history_bytes = route, shape, codec, history_bytes
        self.between = nn.ModuleDict()
        """Modules for the states, (..., hidden), as they go into a layer, by its number; see `insert`."""
        self.audits: BlockAudits | None = None
        """Which prompts are checked with other servers, and what came of it; None: none."""

        self.deep_prompts: nn.Parameter | None = None
        """(layer, place, hidden): added to the first positions of what each layer reads; see `learning`."""

    def insert(self, layer: int, module: nn.Module) -> None:
        """Put a module in front of a layer, or behind the last one; it changes each position by itself.

        It gets one stream after the other, (sample, position, hidden).
        """
        if not 0 <= layer <= self.shape.num_layers:
            raise ValueError(f"There is no place before layer {layer}, expected 0 to {self.shape.num_layers}.")
        self.between[str(layer)] = module

    def __len__(self) -> int:
        return self.shape.num_layers

    def __getitem__(self, layers: slice) -> "SomeLayers":
        """Return consecutive layers as a module."""
        start, stop, step = layers.indices(self.shape.num_layers)
        if step != 1 or start >= stop:
            raise IndexError(f"Layers {layers} are none, expected a range such as 0:{self.shape.num_layers}.")
        return SomeLayers(self, range(start, stop))

    def forward(self, states: Tensor, padding: Tensors | None = None) -> Tensor:
        """Run all layers, and what is between them, over (stream, sample, position, hidden)."""
        return self.run(states, range(self.shape.num_layers), padding)

    def run(self, states: Tensor, layers: range, padding: Tensors | None = None) -> Tensor:
        """Run some layers; of language models `padding` are the tensors `mask` and `positions` of `Padding`."""
        inner = [int(layer) for layer in self.between if layers.start < int(layer) < layers.stop]
        edges = [layers.start, *sorted(inner), layers.stop]
        if layers.start == 0:
            states = self.changed(0, states)
        for start, stop in itertools.pairwise(edges):
            prompts = None if self.deep_prompts is None else self.deep_prompts[start:stop]
            states = _RemoteRun.apply(states, prompts, padding, self, range(start, stop))
            if stop < layers.stop or stop == self.shape.num_layers:
                states = self.changed(stop, states)
        return states

    def changed(self, layer: int, states: Tensor) -> Tensor:
        """Return the states as they go into a layer."""
        if str(layer) not in self.between:
            return states
        return torch.stack([self.between[str(layer)](stream) for stream in states])

    def session(self, opening: Mapping[str, object], *, first_place: int = 0) -> ChainSession:
        """Open the caches of a generation along a chain."""
        between = {int(layer): lambda states, layer=int(layer): self.changed(layer, states) for layer in self.between}
        return ChainSession(
            self.route,
            self.shape,
            opening,
            codec=self.codec,
            between=between,
            deep_prompts=self.deep_prompts,
            history_bytes=self.history_bytes,
            first_place=first_place,
            audits=self.audits,
        )

    def run_forward(
        self, states: Tensor, layers: range, padding: Tensors | None, prompts: Tensor | None
    ) -> tuple[list[tuple[Hop, Tensor]], Tensor]:
        """Run layers on a chain; return each hop with what went into it, and the states behind all of them."""
        trail: list[tuple[Hop, Tensor]] = []
        at = layers.start
        while at < layers.stop:
            hop = self.route.chain(range(at, layers.stop))[0]
            try:
                out = self._ask("forward", hop, states, padding, _part_of(prompts, layers, hop), None)[0]
            except LOST as error:
                self.route.avoid(hop.peer, error)
                continue
            trail.append((hop, states))
            states, at = out, hop.end
        return trail, states

    def run_backward(
        self, trail: Sequence[tuple[Hop, Tensor]], layers: range, padding: Tensors | None, prompts: Tensor | None,
        grads: Tensor,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return the gradients of what went in, and of the prompts; another chain takes a lost hop's place."""
        prompt_grads = None if prompts is None else torch.zeros_like(prompts)
        for hop, states in reversed(trail):
            part = _part_of(prompts, layers, hop)
            try:
                grads, more = self._ask("backward", hop, states, padding, part, grads)
            except LOST as error:
                self.route.avoid(hop.peer, error)
                own = range(hop.start, hop.end)
                again, _ = self.run_forward(states, own, padding, part)
                grads, more = self.run_backward(again, own, padding, part, grads)
            if prompt_grads is not None and more is not None:
                prompt_grads[hop.start - layers.start : hop.end - layers.start] = more
        return grads, prompt_grads

    def _ask(
        self, what: str, hop: Hop, states: Tensor, padding: Tensors | None, prompts: Tensor | None, grads: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        _, samples, positions, _ = states.shape
        body = dict(
            do=what, start=hop.start, end=hop.end, revision=self.route.revision, codec=self.codec,
            samples=samples, positions=positions,
        )  # fmt: skip
        tensors = codecs.encode(states, self.codec)
        if prompts is not None:
            tensors["prompts"] = prompts.detach().float().contiguous()
        tensors |= padding or {}
        if grads is not None:
            tensors |= {f"grads.{name}": part for name, part in codecs.encode(grads, self.codec).items()}
        _, answer = self.route.ask(hop, body, tensors)
        more = None
        if grads is not None and prompts is not None:
            more = states_of({"values": answer.get("prompts")}, codecs.FLOAT32, tuple(prompts.shape))  # type: ignore[dict-item]
        return states_of(answer, self.codec, tuple(states.shape)), more


class SomeLayers(nn.Module):
    """Consecutive layers, as a module between one's own."""

    def __init__(self, whole: RemoteLayers, layers: range) -> None:
        super().__init__()
        self._whole, self.layers = [whole], layers  # in a list: its parameters are not this module's

    def forward(self, *streams: Tensor, padding: Tensors | None = None) -> Tensor | tuple[Tensor, ...]:
        """Run the layers over (sample, position, hidden): one tensor in a language model, two in the DALL-E model.

        One tensor for the DALL-E model stands for both streams, as in front of its first layer. Returns as many tensors
        as the model has streams.
        """
        whole = self._whole[0]
        count = whole.shape.num_streams
        if len(streams) not in (1, count):
            raise ValueError(f"{len(streams)} streams were given, expected {count}.")
        states = torch.stack([streams[number % len(streams)] for number in range(count)])
        out = whole.run(states, self.layers, padding)
        return out[0] if count == 1 else tuple(out.unbind(0))


class _RemoteRun(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, prompts: Tensor | None, padding: Tensors | None, whole: RemoteLayers, layers: range
    ) -> Tensor:
        ctx.trail, out = whole.run_forward(states, layers, padding, prompts)
        ctx.prompts, ctx.padding, ctx.whole, ctx.layers, ctx.dtype = prompts, padding, whole, layers, states.dtype
        return out.to(states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found, prompt_grads = ctx.whole.run_backward(ctx.trail, ctx.layers, ctx.padding, ctx.prompts, grad)
        return found.to(grad), prompt_grads, None, None, None


def _part_of(prompts: Tensor | None, layers: range, hop: Hop) -> Tensor | None:
    return None if prompts is None else prompts[hop.start - layers.start : hop.end - layers.start]
