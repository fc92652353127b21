"""The DALL-E model with its layers on other machines. Axes: stream, prompt, sample, step, place, hidden."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.blocks_dalle_collab import DalleCollabStack, Taps
from modeling_dalle_collab.cache_dalle_collab import GenerationLayers
from modeling_dalle_collab.linear_dalle_collab import Products, product_of
from pipelines.features.serving.blocks.client.chain_session import ChainSession
from pipelines.features.serving.blocks.client.remote_layers import RemoteLayers
from pipelines.features.serving.blocks.dalle_span import STACK
from pipelines.features.serving.blocks.weights import PublishedModel


class RemoteStack(DalleCollabStack):
    """Stands where the model has its layers, and has none itself."""

    def __init__(self, config: DalleCollabConfig, layers: RemoteLayers) -> None:
        torch.nn.Module.__init__(self)
        self.config, self.gradient_checkpointing = config, False
        self.layers = layers  # type: ignore[assignment]

    def forward(self, x: Tensor, tables: object = None, taps: Taps | None = None) -> Tensor:
        """See `DalleCollabStack.forward`; hidden states are fetched layer by layer, attention weights never."""
        layers: RemoteLayers = self.layers  # type: ignore[assignment]
        states = torch.stack([x, x])
        if taps is None:
            return mean(layers(states))
        if taps.attentions is not None:
            raise ValueError("Attention weights stay where the layers are. Leave out output_attentions.")
        taps.hidden_states.append(x)
        for layer in range(len(layers)):
            states = layers.run(states, range(layer, layer + 1))
            taps.hidden_states.append(mean(states))
        return taps.hidden_states[-1]


def mean(states: Tensor) -> Tensor:
    """Return the mean of the two streams."""
    return (states[0] + states[1]) * 0.5


class DistributedDalleCollab(DalleCollabForConditionalGeneration):
    """Embeddings, norm and head here, layers elsewhere; everything else is the local class."""

    open_sessions: list[ChainSession]

    @classmethod
    def assemble(cls, model: PublishedModel, layers: RemoteLayers) -> "DistributedDalleCollab":
        """Read what a client needs of the weights, and put others' layers between."""
        config = DalleCollabConfig.from_dict(dict(model.config))
        with torch.device("meta"):
            whole = cls(config)
        whole.model.stack, whole.open_sessions = RemoteStack(config, layers), []
        found = whole.load_state_dict(model.read(without=(STACK,)), strict=False, assign=True)
        if found.missing_keys or found.unexpected_keys:
            raise ValueError(f"The weights of {model.name} lack {found.missing_keys[:3]}: they do not fit config.json.")
        return whole.float().eval()

    @property
    def layers(self) -> RemoteLayers:
        """The layers; a slice of them is a module."""
        return self.model.stack.layers

    def generation_layers(self) -> GenerationLayers:
        """See `ImageCodeGeneration.generation_layers`."""
        return RemoteGeneration(self)  # type: ignore[return-value]

    def generate_image_codes(self, input_ids: Tensor, **options: Any) -> Tensor:
        """See `ImageCodeGeneration.generate_image_codes`."""
        with self._sessions(options):
            return super().generate_image_codes(input_ids, **options)

    def stream_image_codes(self, input_ids: Tensor, **options: Any) -> Iterator[Tensor]:
        """See `ImageCodeGeneration.stream_image_codes`."""
        with self._sessions(options):
            yield from super().stream_image_codes(input_ids, **options)

    @contextmanager
    def _sessions(self, options: Mapping[str, object]) -> Iterator[None]:
        """End the sessions that a generation opens."""
        if options.get("compile_step"):
            raise ValueError("compile_step is set, but the layers are on other machines. Leave it out.")
        before, self.open_sessions = self.open_sessions, []
        opened = self.open_sessions
        try:
            yield
        finally:
            self.open_sessions = before
            for session in opened:
                session.close()


class RemoteGeneration:
    """What reads prompts and codes across a chain; see `GenerationLayers`."""

    def __init__(self, model: DistributedDalleCollab) -> None:
        self._model = model

    def can_be_captured(self) -> bool:
        """See `GenerationLayers.can_be_captured`: the layers are on other machines."""
        return False

    def read(self, x: Tensor, num_places: int) -> "RemotePrefix":
        """See `GenerationLayers.read`; nothing is sent before its result is needed."""
        return RemotePrefix(self._model, [x], num_places, product_of(self._model.model.token_embedding) is not None)

    def open(
        self, prefix: "RemotePrefix", num_candidates: int, *, window: int, static: bool, compiled: bool
    ) -> "RemoteCache":
        """See `GenerationLayers.open`; servers compile nothing."""
        return RemoteCache(self._model, prefix, num_candidates, dict(window=window, is_static=static))

    def packed(self) -> Products:
        """Return nothing: servers have their own."""
        return {}


class RemotePrefix:
    """Prompts that a chain has read, or will; see `Prefix`."""

    def __init__(self, model: DistributedDalleCollab, parts: list[Tensor], num_places: int, is_packed: bool) -> None:
        self._model, self._parts, self.num_places, self._is_packed = model, parts, num_places, is_packed

    def join(self, other: "RemotePrefix") -> "RemotePrefix":
        """See `Prefix.join`."""
        return RemotePrefix(self._model, self._parts + other._parts, self.num_places, self._is_packed)

    @cached_property
    def session(self) -> ChainSession:
        """The caches, once they are opened."""
        opening = dict(num_prompts=sum(map(len, self._parts)), num_places=self.num_places)
        session = self._model.layers.session(opening, first_place=self.num_places)
        self._model.open_sessions.append(session)
        return session

    @cached_property
    def hidden(self) -> Tensor:
        """See `Prefix.hidden`."""
        last = self._model.config.text_block_length + self.num_places - 1
        found = []
        for x in self._parts:
            states = self.session.prefill(torch.stack([x, x]), dict(is_packed=self._is_packed))
            found.append(mean(states)[:, last])
        return torch.cat(found)


class RemoteCache:
    """A batch of candidates across a chain; see `GenerationCache`."""

    def __init__(
        self, model: DistributedDalleCollab, prefix: RemotePrefix, num_candidates: int, options: dict[str, object]
    ) -> None:
        self._model, self._prefix, self._num_candidates = model, prefix, num_candidates
        self._options, self._is_started = options, False

    def first_hidden(self) -> Tensor:
        """See `GenerationCache.first_hidden`."""
        return self._prefix.hidden.repeat_interleave(self._num_candidates, dim=0)

    def step(self, x: Tensor, places: Tensor) -> Tensor:
        """See `GenerationCache.step`."""
        session = self._prefix.session
        if not self._is_started:
            is_packed = product_of(self._model.model.token_embedding) is not None
            session.start(dict(self._options, num_candidates=self._num_candidates, is_packed=is_packed))
            self._is_started = True
        return mean(session.step(torch.stack([x, x]), places))
