"""The DALL-E-like transformer as a transformers model: embedding, layers, tied head, weighted loss.

Axes: batch, text (`text_sequence_length`), image (`num_image_codes`), position (`<bos>`, text, image), hidden.
"""

import math
import os
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, can_return_tuple

from .blocks_dalle_collab import DalleCollabBranch, DalleCollabStack, Taps
from .code_cache_dalle_collab import ImageCodeCache, read_codes
from .configuration_dalle_collab import AUTO_MAP, CUSTOM_PIPELINES, DalleCollabConfig
from .generation_dalle_collab import ImageCodeGeneration
from .inputs_dalle_collab import check_attention_mask, check_image_codes, check_text, refuse_effects, require_ids
from .linear_dalle_collab import Gradients, add_gradients_to, current_gradient_sums, is_plain
from .offloaded_dalle_collab import with_offloaded_weights
from .table_dalle_collab import cross_entropy, look_up, table_rows

# `<bos>` has no id of its own: it is row 0 of the embedding, as in the model's ancestor. A text id 0 never gets there,
# because it stands for "padding of this position".
BOS_ID = 0


@dataclass
class DalleCollabOutput(ModelOutput):
    """What a forward pass of `DalleCollabForConditionalGeneration` returns."""

    loss: Tensor | None = None
    """Scalar: (text_loss + image_loss_weight * image_loss) / (1 + image_loss_weight)."""
    text_loss: Tensor | None = None
    """Scalar: mean cross-entropy of the text tokens, padding included, in nats."""
    image_loss: Tensor | None = None
    """Scalar: mean cross-entropy of the image codes, in nats."""
    logits: Tensor | None = None
    """(batch, text + image, vocabulary); ids that a position cannot predict hold the dtype's lowest number."""
    hidden_states: tuple[Tensor, ...] | None = None
    """As in `DalleCollabModel`, if asked for."""
    attentions: tuple[Tensor, ...] | None = None
    """As in `DalleCollabModel`, if asked for."""
    past_key_values: ImageCodeCache | None = None
    """What has been read, to go on from, after a pass with `use_cache=True`."""


class DalleCollabPreTrainedModel(PreTrainedModel):
    """Initialisation, saving and loading shared by the two models."""

    config: DalleCollabConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # transformers also declares lists, or only None, for its own models.
    input_modalities = ("text", "image")  # type: ignore[assignment]
    output_modalities = ("image",)
    supports_gradient_checkpointing = True  # in place of `config.recompute`, which is the cheaper option
    _no_split_modules = ("DalleCollabStack",)  # type: ignore[assignment]
    _supports_sdpa = True
    accepts_loss_kwargs = False  # else transformers' Trainer takes `**others` for the number of labels in a step
    _auto_class = "AutoModel"  # type: ignore[assignment]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The ancestor's initialisation: torch's own for linear layers, and the tied table as a linear layer's weight.
        if isinstance(module, nn.Linear | nn.Embedding):
            bound = 1 / math.sqrt(module.weight.shape[1])
            init.uniform_(module.weight, -bound, bound)
            if (bias := getattr(module, "bias", None)) is not None:
                init.uniform_(bias, -bound, bound)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, DalleCollabBranch):
            init.constant_(module.scale, module.initial_scale)
        elif isinstance(module, DalleCollabForConditionalGeneration):
            bound = 1 / math.sqrt(self.config.hidden_size)
            init.uniform_(module.output_bias, -bound, bound)

    @torch.no_grad()
    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Make room for `new_num_tokens` text pieces, a tokenizer's new size, and return the tied table.

        Padding ids and image codes keep their rows after the text's. New rows are the mean of the old text rows, or
        newly initialised without `mean_resizing`. What was frozen stays so. Raises `ValueError` if the padding id would
        be cut off, and for a table with an adapter.
        """
        old = self.config.text_vocab_size
        size = old if new_num_tokens is None else new_num_tokens
        size += -size % (pad_to_multiple_of or 1)
        if size <= self.config.pad_token_id:
            raise ValueError(
                f"The table would have {size} text pieces, expected more than {self.config.pad_token_id}, "
                "the padding id. Pass the tokenizer's length."
            )
        table, bias = cast("nn.Embedding", self.get_input_embeddings()), getattr(self, "output_bias", None)
        if type(table) is not nn.Embedding:
            raise ValueError(
                f"The table is a {type(table).__name__} of {type(table).__module__.partition('.')[0]}, expected one "
                "without an adapter. Make room for new text pieces before the adapter is added, or merge it first."
            )
        fresh = table.weight.new_empty(max(0, size - old), table.embedding_dim)
        bound = 1 / math.sqrt(table.embedding_dim)
        fresh = fresh.uniform_(-bound, bound) if not mean_resizing else fresh.copy_(table.weight[:old].mean(dim=0))
        rows = torch.cat([table.weight[: min(old, size)], fresh, table.weight[old:]])
        table.weight = nn.Parameter(rows, requires_grad=table.weight.requires_grad)
        table.num_embeddings = len(table.weight)
        if bias is not None:
            new = bias.new_zeros(len(fresh)) + bias[:old].mean()
            values = torch.cat([bias[: min(old, size)], new, bias[old:]])
            self.output_bias = nn.Parameter(values, requires_grad=bias.requires_grad)
        self.config.text_vocab_size = size
        return table

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save weights (safetensors), configuration and the code that reads them, for `trust_remote_code=True`."""
        self.config.auto_map = dict(AUTO_MAP)
        self.config.custom_pipelines = {task: dict(parts) for task, parts in CUSTOM_PIPELINES.items()}
        super().save_pretrained(save_directory, *args, **kwargs)


class DalleCollabModel(DalleCollabPreTrainedModel):
    """The transformer without its head: from text ids and image codes to hidden states."""

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.stack = DalleCollabStack(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the tied table: rows of text ids, of position-wise padding ids, then of image codes."""
        return self.token_embedding

    @can_return_tuple
    @with_offloaded_weights
    def forward(
        self,
        input_ids: Tensor,
        image_codes: Tensor,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        attention_mask: Tensor | None = None,
        **others: object,
    ) -> BaseModelOutput:
        """Return the normalised hidden states (batch, text + image, hidden) that predict each text id and image code.

        `input_ids`: (batch, text) integers in [0, text_vocab_size); `image_codes`: (batch, image) integers in
        [0, codebook_size). On demand also `hidden_states`, the mean of the two streams before the first and after every
        layer, the last one normalised, each (batch, text + image, hidden); and `attentions`, the weights of every
        layer, (batch, head, text + image, text + image), for which the attention implementation must be "eager".
        `attention_mask` may hide padding alone, and `others`, transformers' usual arguments, must change nothing;
        `return_dict=False` gives a tuple. Raises `ValueError` for anything else, or for another shape or range.
        """
        refuse_effects("forward", others, "See the docstring of forward.")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        device = self.token_embedding.weight.device
        check_text(input_ids, self.config, device)
        check_image_codes(image_codes, self.config, device, batch=len(input_ids))
        if attention_mask is not None:
            check_attention_mask(attention_mask, input_ids, self.config)
        image_ids = image_codes.long() + self.config.num_text_ids
        ids, sums = torch.cat([self.text_block_ids(input_ids), image_ids], dim=1), current_gradient_sums()
        if sums is None:
            x = self.token_embedding(ids)
        else:
            x = look_up(ids, self.token_embedding.weight, self.stack.groups.parameters(), sums)
        taps = self._taps(output_hidden_states, output_attentions)
        # The last image code predicts nothing; it is there so that the image is a whole grid.
        last = self.norm(self.stack(x, taps=taps))[:, :-1]
        if taps is None:
            return BaseModelOutput(last_hidden_state=last)
        seen = [state[:, :-1] for state in taps.hidden_states[:-1]]
        return BaseModelOutput(
            last_hidden_state=last,
            hidden_states=(*seen, last) if output_hidden_states else None,
            attentions=None if taps.attentions is None else tuple(w[:, :, :-1, :-1] for w in taps.attentions),
        )

    def _taps(self, output_hidden_states: bool | None, output_attentions: bool | None) -> Taps | None:
        if output_attentions and self.config._attn_implementation != "eager":
            raise ValueError(
                f'Attention weights are requested, but the attention implementation is "'
                f'{self.config._attn_implementation}", which never computes them as a whole; expected "eager". '
                'Set it: model.set_attn_implementation("eager")'
            )
        if output_hidden_states or output_attentions:
            return Taps(attentions=[] if output_attentions else None)
        return None

    def text_labels(self, input_ids: Tensor) -> Tensor:
        """Return the text ids with every 0 replaced by the padding id of its position: (batch, text) int64."""
        padding_ids = self.config.text_vocab_size + torch.arange(input_ids.shape[1], device=input_ids.device)
        ids = input_ids.long()
        return torch.where(ids == 0, padding_ids, ids)

    def text_block_ids(self, input_ids: Tensor) -> Tensor:
        """Return the embedding rows of the text block: (batch, text) to (batch, 1 + text) int64."""
        return F.pad(self.text_labels(input_ids), (1, 0), value=BOS_ID)


# Its `generate` takes fewer arguments than the one of transformers that it replaces.
class DalleCollabForConditionalGeneration(  # type: ignore[misc]
    DalleCollabPreTrainedModel, ImageCodeGeneration, GenerationMixin
):
    """The transformer with its tied head: losses, logits and generated image codes.

    Example:
        model = AutoModel.from_pretrained("ORG/RUN", trust_remote_code=True)
        processor = AutoProcessor.from_pretrained("ORG/RUN", trust_remote_code=True)
        image_codes = model.generate_image_codes(processor(text=["a red circle"]).input_ids, num_candidates=4)
    """

    def __init__(self, config: DalleCollabConfig) -> None:
        super().__init__(config)
        self.model = DalleCollabModel(config)
        self.output_bias = nn.Parameter(torch.empty(config.vocab_size))
        self.post_init()
        self.set_generation_defaults()

    @can_return_tuple
    @with_offloaded_weights
    def forward(
        self,
        input_ids: Tensor | None = None,
        image_codes: Tensor | None = None,
        return_logits: bool = True,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool = True,
        past_key_values: ImageCodeCache | None = None,
        use_cache: bool | None = None,
        **others: object,
    ) -> DalleCollabOutput:
        """Return the losses, and the logits unless `return_logits=False` (three times less memory in the head).

        `input_ids`: (batch, text) integers in [0, text_vocab_size); `image_codes`: (batch, image) integers in
        [0, codebook_size). `labels` may be the same codes, or take their place. See `DalleCollabModel` for all others.
        Raises `ValueError` for another shape or range.

        To sample in a loop of your own, pass captions and the first codes of their images, or none, with
        `use_cache=True`, then the codes that you choose, (batch, number), with the `past_key_values` that came back.
        The last of the logits are those of the next code, whose row is `num_text_ids` more. These passes have neither a
        loss nor gradients.
        """
        image_codes = _codes_of(image_codes, others.pop("labels", None))
        is_whole = isinstance(image_codes, Tensor) and image_codes.shape[-1] >= self.config.num_image_codes
        if past_key_values is not None or (use_cache and not is_whole):
            asked = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
            refuse_effects("A pass with a cache", others | asked, "Pass the whole image without a cache.")
            logits, past = read_codes(self, input_ids, image_codes, past_key_values, attention_mask)
            return DalleCollabOutput(logits=self._padded(logits), past_key_values=past)
        input_ids = require_ids("input_ids", input_ids)
        if self.training and self.config.caption_dropout:
            input_ids = self._drop_captions(input_ids)
        sums: Gradients | None = {} if not return_logits and self._adds_gradients_up() else None
        with nullcontext() if sums is None else add_gradients_to(sums):
            body = self.model(
                input_ids, image_codes, output_hidden_states, output_attentions, attention_mask, return_dict=True,
                **others,
            )  # fmt: skip
        hidden, weight = body.last_hidden_state, self.config.image_loss_weight
        labels = self.model.text_labels(input_ids).flatten(), image_codes.long().flatten()
        if sums is None:
            text_logits, image_logits = self.block_logits(hidden)
            text_loss, image_loss = (
                F.cross_entropy(logits.flatten(0, 1).float(), ids)
                for logits, ids in zip((text_logits, image_logits), labels, strict=True)
            )
        else:
            table, sizes = self.model.token_embedding.weight, (self.config.num_text_ids, self.config.codebook_size)
            text_loss, image_loss = (
                cross_entropy(part.flatten(0, 1), bias, ids, table, first, sums)
                for part, bias, ids, first in zip(
                    self._blocks(hidden), self.output_bias.split(sizes), labels, (0, sizes[0]), strict=True
                )
            )
        return DalleCollabOutput(
            loss=(text_loss + weight * image_loss) / (1 + weight) if return_loss else None,
            text_loss=text_loss,
            image_loss=image_loss,
            logits=self._full_logits(text_logits, image_logits) if return_logits else None,
            hidden_states=body.hidden_states,
            attentions=body.attentions,
        )

    def compile_layers(self) -> None:
        """Compute training passes with compiled layers from now on.

        Attention is FlexAttention on a GPU then; where the compiler fails, the log says so and layers compute as they
        are. A layer's two branches are compiled once for each kind of attention, in about a minute, whatever their
        number and whether activations are stored or recomputed; `torch.compile` of the whole would unroll all layers.
        """
        self.model.stack.compiles_layers = True

    def _adds_gradients_up(self) -> bool:
        """Whether the backward pass adds gradients of shared weights up by itself: in plain training on a CPU."""
        table = self.model.token_embedding
        return (
            torch.is_grad_enabled()
            and is_plain(table, nn.Embedding)
            and table.weight.device.type == "cpu"
            and table.weight.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
            and not self.model.stack.gradient_checkpointing
        )

    def _drop_captions(self, input_ids: Tensor) -> Tensor:
        dropped = torch.rand(len(input_ids), 1, device=input_ids.device) < self.config.caption_dropout
        return input_ids.long().masked_fill(dropped, self.config.pad_token_id)

    def block_logits(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what can be predicted: (batch, text, text ids) at text places, (batch, image, codes) at image ones."""
        sizes = [self.config.num_text_ids, self.config.codebook_size]
        table = table_rows(self.model.token_embedding, range(self.config.vocab_size), hidden.device)
        text_weight, image_weight = table.split(sizes)
        text_bias, image_bias = self.output_bias.split(sizes)
        text_hidden, image_hidden = self._blocks(hidden)
        return F.linear(text_hidden, text_weight, text_bias), F.linear(image_hidden, image_weight, image_bias)

    def _blocks(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return hidden.split([self.config.text_sequence_length, self.config.num_image_codes], dim=1)

    def _full_logits(self, text_logits: Tensor, image_logits: Tensor) -> Tensor:
        lowest = torch.finfo(text_logits.dtype).min
        text = F.pad(text_logits, (0, self.config.codebook_size), value=lowest)
        return torch.cat([text, self._padded(image_logits)], dim=1)

    def _padded(self, image_logits: Tensor) -> Tensor:
        lowest = torch.finfo(image_logits.dtype).min
        return F.pad(image_logits, (self.config.num_text_ids, 0), value=lowest)


def _codes_of(image_codes: Any, labels: Any) -> Tensor:
    """Return the codes that `labels` repeat, or stand for."""
    if labels is None:
        return image_codes
    if image_codes is not None and not torch.equal(labels, image_codes):
        raise ValueError(
            "labels differ from image_codes, expected the same codes or none: the model learns the codes that it "
            "reads. Leave labels out."
        )
    return labels


__all__ = ["DalleCollabForConditionalGeneration", "DalleCollabModel", "DalleCollabOutput", "DalleCollabPreTrainedModel"]
