"""What can be learnt through layers that others serve: new words, prompts in every layer, adapters between spans.

None of it changes a served weight: it is a few tensors on the learner's machine, in a file that also loads without a
swarm. After Gal et al., 2208.01618 (words), Liu et al., 2110.07602 (prompts) and Hu et al., 2106.09685 (low rank).

Example:
    words = LearnedWords.add(model, processor.tokenizer, ["<my-cat>"], like="cat")
    for loss in learn(words.parameters(), lambda: model(**next(batches)).image_loss, num_steps=200):
        print(loss)
    save_learned("my-cat.safetensors", model, words)
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from pipelines.features.serving.blocks.client.remote_layers import RemoteLayers

WORD, ADAPTER, PROMPTS = "word.", "adapter.", "deep_prompts"
FORMAT = "dalle-collab learned 1"
MOST_GRADIENT = 1.0
"""Norm to which the gradient is cut."""


class LearnedWords(nn.Module):
    """Embeddings of new words, in place of rows of the model's table while they are learnt."""

    def __init__(self, model: PreTrainedModel, words: Sequence[str], ids: Sequence[int], vectors: Tensor) -> None:
        super().__init__()
        self.words, self.ids = tuple(words), tuple(ids)
        self.vectors = nn.Parameter(vectors.detach().clone().float())
        """(word, hidden)"""

        model.requires_grad_(False)
        self._handle = _table(model).register_forward_hook(self._put_in)

    @classmethod
    def add(
        cls, model: PreTrainedModel, tokenizer: Tokenizer, words: Sequence[str], *, like: str | None = None
    ) -> "LearnedWords":
        """Make room for new words in tokenizer and model, and let them be learnt; `like` is a word to begin from.

        Raises ValueError if the tokenizer knows one of them, or `like` is not one of its words.
        """
        ids, vectors = _new_rows(model, tokenizer, words)
        if like is not None:
            found = tokenizer(like, add_special_tokens=False).input_ids
            if not found:
                raise ValueError(f"{like!r} is no word for the tokenizer. Begin from another one.")
            vectors[:] = _table(model).weight[found].mean(dim=0)
        return cls(model, words, ids, vectors)

    def finish(self, model: PreTrainedModel) -> None:
        """Write the words into the model's table, and stop replacing them."""
        self._handle.remove()
        with torch.no_grad():
            _table(model).weight[list(self.ids)] = self.vectors

    def _put_in(self, _: nn.Module, inputs: tuple[Tensor, ...], embedded: Tensor) -> Tensor:
        for number, vector in zip(self.ids, self.vectors, strict=True):
            embedded = torch.where((inputs[0] == number)[..., None], vector.to(embedded), embedded)
        return embedded


class LowRankAdapter(nn.Module):
    """Adds a product of two thin matrices to hidden states; at first it adds nothing."""

    def __init__(self, hidden_size: int, rank: int = 8) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, hidden_size) / math.sqrt(hidden_size))
        self.up = nn.Parameter(torch.zeros(hidden_size, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to the same shape."""
        return x + (x @ self.down.t()) @ self.up.t()


def add_deep_prompts(model: PreTrainedModel, num_places: int, *, seed: int = 0) -> nn.Parameter:
    """Give every layer a learnt prompt for the first places of what it reads: (layer, place, hidden).

    In the DALL-E model these are places of the text.
    """
    layers = _layers(model)
    shape = layers.shape
    generator = torch.Generator().manual_seed(seed)
    values = 1e-3 * torch.randn(shape.num_layers, num_places, shape.hidden_size, generator=generator)
    model.requires_grad_(False)
    layers.deep_prompts = nn.Parameter(values)
    return layers.deep_prompts


def add_adapters(model: PreTrainedModel, layers: Iterable[int], *, rank: int = 8, seed: int = 0) -> list[nn.Parameter]:
    """Put an adapter in front of each of these layers, where a chain changes servers; return what is to be learnt."""
    model.requires_grad_(False)
    remote = _layers(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in layers:
            remote.insert(layer, LowRankAdapter(remote.shape.hidden_size, rank))
    return list(remote.between.parameters())


def learn(
    parameters: Iterable[nn.Parameter],
    loss: Callable[[], Tensor],
    *,
    num_steps: int,
    learning_rate: float = 1e-2,
) -> Iterator[float]:
    """Take steps of Adam and yield the loss before each; `loss` computes that of the next batch.

    Raises ValueError for a loss that is not finite.
    """
    kept = list(parameters)
    optimizer = torch.optim.Adam(kept, lr=learning_rate)
    for step in range(1, num_steps + 1):
        optimizer.zero_grad()
        value = loss()
        if not value.isfinite():
            raise ValueError(f"The loss of step {step} is {value.item()}, expected a number. Lower the learning rate.")
        value.backward()
        nn.utils.clip_grad_norm_(kept, MOST_GRADIENT)
        optimizer.step()
        yield value.item()


def save_learned(file: str | Path, model: object, words: LearnedWords | None = None) -> None:
    """Write what was learnt: words, deep prompts and adapters, whichever there are."""
    tensors: dict[str, Tensor] = {}
    if words is not None:
        tensors |= {f"{WORD}{word}": vector for word, vector in zip(words.words, words.vectors.detach(), strict=True)}
    layers = getattr(model, "layers", None)
    if layers is not None and layers.deep_prompts is not None:
        tensors[PROMPTS] = layers.deep_prompts.detach()
    for layer, adapter in [] if layers is None else layers.between.items():
        if isinstance(adapter, LowRankAdapter):
            tensors |= {f"{ADAPTER}{layer}.down": adapter.down.detach(), f"{ADAPTER}{layer}.up": adapter.up.detach()}
    if not tensors:
        raise ValueError("Nothing was learnt: expected words, deep prompts or adapters.")
    about = {} if layers is None else dict(model=layers.route.repository, revision=layers.route.revision)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        str(file),
        metadata={"format": FORMAT, "about": json.dumps(about)},
    )


def load_learned(file: str | Path, model: PreTrainedModel, tokenizer: Tokenizer | None = None) -> tuple[str, ...]:
    """Put what was learnt into a model, and new words into its tokenizer; return the words.

    Words also go into the local class; prompts and adapters need a `DistributedModel`, with or without a swarm.

    Raises:
        ValueError: the file is of another kind or of a model of other sizes, or needs a `DistributedModel`.
    """
    with safe_open(str(file), framework="pt") as content:
        if (content.metadata() or {}).get("format") != FORMAT:
            raise ValueError(f"{file} is not of the format {FORMAT!r}. `save_learned` writes such a file.")
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  # it is no mapping
    _check_sizes(file, tensors, model)
    words = {name.removeprefix(WORD): tensor for name, tensor in tensors.items() if name.startswith(WORD)}
    if words:
        if tokenizer is None:
            raise ValueError(f"{file} has words. Give the tokenizer that is to know them.")
        ids, _ = _new_rows(model, tokenizer, list(words))
        with torch.no_grad():
            _table(model).weight[ids] = torch.stack(list(words.values()))
    if PROMPTS in tensors:
        _layers(model).deep_prompts = nn.Parameter(tensors[PROMPTS], requires_grad=False)
    for name in [name for name in tensors if name.startswith(ADAPTER) and name.endswith(".down")]:
        layer = int(name.split(".")[1])
        adapter = LowRankAdapter(tensors[name].shape[1], tensors[name].shape[0])
        adapter.load_state_dict({"down": tensors[name], "up": tensors[f"{ADAPTER}{layer}.up"]})
        _layers(model).insert(layer, adapter.requires_grad_(False))
    return tuple(words)


def _check_sizes(file: str | Path, tensors: dict[str, Tensor], model: PreTrainedModel) -> None:
    hidden = _table(model).embedding_dim
    for name, tensor in tensors.items():
        seen = tensor.shape[0] if name.endswith(".up") else tensor.shape[-1]
        if seen != hidden or not tensor.isfinite().all():
            raise ValueError(f"{name} in {file} has width {seen}, the model {hidden}; expected finite values of that.")
    if any(not name.startswith(WORD) for name in tensors) and not hasattr(model, "layers"):
        raise ValueError(f"{file} has prompts or adapters. Open the model so: DistributedModel.from_pretrained(...)")


def _new_rows(model: PreTrainedModel, tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], Tensor]:
    """Add words to the tokenizer, and rows to the table if it has no room; return ids and values, (word, hidden)."""
    if known := [word for word in words if word in tokenizer.get_vocab()]:
        raise ValueError(f"The tokenizer has the word {known[0]!r} already. Choose another, such as <my-{known[0]}>.")
    tokenizer.add_tokens(list(words))
    size = getattr(model.config, "text_vocab_size", model.config.vocab_size)
    if len(tokenizer) > size:
        model.resize_token_embeddings(len(tokenizer))
    ids = [tokenizer.get_vocab()[word] for word in words]
    return ids, _table(model).weight[ids].detach().clone()


def _table(model: PreTrainedModel) -> nn.Embedding:
    return cast("nn.Embedding", model.get_input_embeddings())


def _layers(model: PreTrainedModel) -> RemoteLayers:
    return cast("RemoteLayers", model.layers)
