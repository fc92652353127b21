"""A causal language model of transformers with its layers on other machines. Axes: sample, position, hidden."""

import functools
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.generation.utils import GenerateOutput
from transformers.initialization import no_init_weights
from transformers.utils import ModelOutput

from pipelines.features.serving.blocks.causal_span import BodyNames, body_names, read_config
from pipelines.features.serving.blocks.client.chain_session import ChainSession
from pipelines.features.serving.blocks.client.remote_layers import RemoteLayers
from pipelines.features.serving.blocks.weights import PublishedModel


class RemoteKeysAndValues(DynamicCache):
    """Stands for keys and values that servers hold. Closes its session when it is forgotten."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.seen = length, 0
        self.session: ChainSession | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many positions were read."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the length of keys, and where they begin."""
        return self.seen + query_length, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these samples: beam search."""
        if self.session is not None:
            self.session.reorder(beam_idx.long().cpu())

    def close(self) -> None:
        """Give the servers' memory back."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def __del__(self) -> None:
        self.close()


class RemoteBlock(nn.Module):
    """Stands where the model has its layers; called once for all of them."""

    def __init__(self, layers: RemoteLayers) -> None:
        super().__init__()
        self.layers = layers
        self.mask: Tensor | None = None
        """What the caller said about padding, (sample, position); layers get it in another form."""

    def forward(
        self, hidden_states: Tensor, *args: object, position_ids: Tensor | None = None, **options: object
    ) -> Tensor:
        """Run all layers over (sample, position, hidden), behind what the cache holds, if there is one."""
        caches = [value for value in (*args, *options.values()) if isinstance(value, RemoteKeysAndValues)]
        padding = {}
        if self.mask is not None and not bool(self.mask.all()):
            padding["mask"] = self.mask.to(torch.uint8).cpu()
        if position_ids is not None:
            padding["positions"] = position_ids.cpu()
        if not caches:
            return self.layers(hidden_states[None], padding)[0]
        cache, (samples, length, _) = caches[0], hidden_states.shape
        if cache.session is None:
            cache.session = self.layers.session(dict(num_samples=samples, length=cache.length))
        places = torch.arange(cache.seen, cache.seen + length).expand(samples, -1)
        out = cache.session.step(hidden_states[None], places, padding)[0]
        cache.seen += length
        return out


class DistributedCausal:
    """What a causal language model's class gains when its layers are elsewhere."""

    remote_block: RemoteBlock
    config: PreTrainedConfig

    @property
    def layers(self) -> RemoteLayers:
        """The layers; a slice of them is a module."""
        return self.remote_block.layers

    def generate(self, *args: object, **options: object) -> Tensor | GenerateOutput:
        """See the local class; the servers' memory is given back at the end."""
        self._caches: list[RemoteKeysAndValues] = []
        try:
            return super().generate(*args, **options)  # type: ignore[misc]
        finally:
            for cache in self._caches:
                cache.close()

    def _prepare_cache_for_generation(
        self, config: GenerationConfig, model_kwargs: dict[str, object], mode: object, batch_size: int, max_length: int
    ) -> None:
        if config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            cache = RemoteKeysAndValues(min(max_length, self._most_positions()))
            self._caches.append(cache)
            model_kwargs["past_key_values"] = cache

    def _most_positions(self) -> int:
        return self.config.max_position_embeddings


def assemble_causal(model: PublishedModel, layers: RemoteLayers) -> PreTrainedModel:
    """Read embeddings, last norm and head, and put others' layers between; an instance of the local class."""
    names, config = body_names(model.config), read_config(model.config)
    local = cast("type[PreTrainedModel]", AutoModelForCausalLM._model_mapping[type(config)])
    kind = type(f"Distributed{local.__name__}", (DistributedCausal, local), {"forward": _forward_of(local)})
    count, config.num_hidden_layers = config.num_hidden_layers, 1
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = kinds[:1]
    with no_init_weights():
        whole = kind(config).float()
    config.num_hidden_layers = count
    if kinds is not None:
        config.layer_types = kinds
    _put(whole, names, RemoteBlock(layers))
    before = f"{names.body}.{names.layers}."
    found = whole.load_state_dict(model.read(without=(before,)), strict=False, assign=False)
    whole.tie_weights()
    tied = {name for name in found.missing_keys if name.startswith("lm_head.") and config.tie_word_embeddings}
    if missing := [name for name in found.missing_keys if name not in tied]:
        raise ValueError(f"The weights of {model.name} lack {missing[:3]}: they do not fit config.json.")
    return whole.eval()


def _forward_of(local: type[PreTrainedModel]) -> Callable[..., ModelOutput]:
    """Return the local class's forward, which without a cache of this module caches nothing."""

    # transformers looks at the arguments' names, to find out what a model takes.
    @functools.wraps(local.forward)
    def forward(
        self: DistributedCausal, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **more: object
    ) -> ModelOutput:
        given = more.get("past_key_values")
        if given is None and more.get("use_cache") and input_ids is not None:
            more["past_key_values"] = RemoteKeysAndValues(self._most_positions())
        elif given is None:
            more["use_cache"] = False
        self.remote_block.mask = attention_mask
        return local.forward(self, input_ids=input_ids, attention_mask=attention_mask, **more)

    return forward


def _put(whole: object, names: BodyNames, block: RemoteBlock) -> None:
    body = getattr(whole, names.body)
    setattr(body, names.layers, nn.ModuleList([block]))
    object.__setattr__(whole, "remote_block", block)
