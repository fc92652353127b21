"""The sizes and the wiring of the collaborative DALL-E; every number that a checkpoint depends on."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from transformers import PreTrainedConfig
from transformers.utils import logging

if TYPE_CHECKING:
    # A saved model includes the files that its code imports from the same folder; this one is needed only by name.
    from .pipeline_dalle_collab import TextToImagePipeline  # noqa: F401

logger = logging.get_logger(__name__)

ATTENTION_KINDS = ("row", "column", "convolutional")
CONV_WINDOWS = ("centred", "corner")
RECOMPUTE_CHOICES = ("reversible", "partial", "none")

# What transformers adds to a saved configuration.
ADDED_NAMES = ("auto_map", "custom_pipelines", "model_type", "quantization_config", "tie_word_embeddings")

# Which class of which file implements which auto class, for code loaded from the Model Hub.
AUTO_MAP = {
    "AutoConfig": "configuration_dalle_collab.DalleCollabConfig",
    "AutoModel": "modeling_dalle_collab.DalleCollabForConditionalGeneration",
    "AutoModelForMultimodalLM": "modeling_dalle_collab.DalleCollabForConditionalGeneration",
    "AutoProcessor": "processing_dalle_collab.DalleCollabProcessor",
}

# The same for `transformers.pipeline`.
CUSTOM_PIPELINES = {
    "text-to-image": {
        "impl": "pipeline_dalle_collab.TextToImagePipeline",
        "pt": ["AutoModel"],
        "type": "multimodal",
    }
}


class DalleCollabConfig(PreTrainedConfig):
    """The configuration of a DALL-E-like transformer; the defaults are the sizes of the paper's run.

    The sequence is `<bos>`, `text_sequence_length` text tokens, then `image_grid_size ** 2` image codes in raster
    order. The vocabulary is the tokenizer's pieces, one padding id for each text position, then the image codes.
    Layers cycle through `attention_pattern` and share the weights of their place in the cycle; the last layer has
    `final_attention` and weights of its own. Raises `ValueError` if the sizes do not fit together.
    """

    model_type = "dalle_collab"
    _auto_class: ClassVar[str | None] = "AutoConfig"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["text_loss", "image_loss", "past_key_values"]

    text_vocab_size: int = 32100
    """Size of the tokenizer's vocabulary."""
    codebook_size: int = 8192
    """Number of image codes."""
    text_sequence_length: int = 256
    """Number of text tokens; captions are padded or truncated to it."""
    image_grid_size: int = 32
    """Side of the square of image codes: 32 means 1024 codes."""
    hidden_size: int = 1024
    """Width of the residual streams; a multiple of 4, because the token shift moves quarters."""
    num_hidden_layers: int = 64
    """Number of layers (attention and feed-forward), each with its own normalisation and scale."""
    num_attention_heads: int = 16
    """Number of attention heads."""
    head_dim: int = 64
    """Channels of one head; even and at least 6, because rotary positions turn pairs in three parts."""
    attention_pattern: tuple[str, ...] | list[str] = ("row", "column", "row", "row")
    """Kinds of attention that all layers but the last cycle through; one shared set of weights for each place."""
    final_attention: str = "convolutional"
    """Kind of attention of the last layer."""
    conv_kernel_size: int = 5
    """Side of the window of convolutional attention; odd."""
    conv_window: str = "centred"
    """`centred` (the original run, dalle-pytorch up to 1.4.2) or `corner` (dalle-pytorch from 1.5.0 on)."""
    feed_forward_multiplier: int = 4
    """Width of the gated feed-forward layer in units of `hidden_size`."""
    attention_dropout: float = 0.0
    """Share of the attention outputs dropped in training."""
    feed_forward_dropout: float = 0.0
    """Share of the gated feed-forward activations dropped in training."""
    layer_norm_eps: float = 1e-5
    """Added to the variance in every layer normalisation."""
    pad_token_id: int = 1
    """Text id that pads captions; an ordinary token for the model (T5's `</s>` in the original run)."""
    image_loss_weight: float = 7.0
    """Weight of the image loss against the text loss, which has weight 1."""
    recompute: str = "reversible"
    """`reversible` recomputes activations in the backward pass (memory does not grow with depth); `none` stores
    them (a quarter less work); `partial` stores those of the last half of the layers. Same numbers; may be changed at
    any time."""
    caption_dropout: float = 0.0
    """Share of the captions replaced by padding in training, so that guidance has something to compare with;
    0.1 is common. The original run had none."""

    def __post_init__(self, **kwargs: object) -> None:
        self.attention_pattern = tuple(self.attention_pattern)
        super().__post_init__(**kwargs)
        self._check_names(kwargs)
        self._check_counts()
        self._check_choices()
        self._check_sizes()

    def _check_names(self, others: Mapping[str, object]) -> None:
        """Refuse what this model does not have; in a saved configuration, which tools add to, only warn of it."""
        if others.get("tie_word_embeddings") is False:
            raise ValueError("tie_word_embeddings is False, but this model has one table for input and output.")
        known = [name for name in others if name in ADDED_NAMES or name[0] == "_" or name.endswith("_token_id")]
        if unknown := [name for name in vars(self) if name in others and name not in known]:
            problem = f"{', '.join(unknown)} would have no effect on this model, which does not know it."
            if self.transformers_version is None:
                raise ValueError(f"{problem} Check the spelling, or update the model's code.")
            logger.warning_once(f"{problem} If it is not a tool's note, update the model's code.")

    def _check_counts(self) -> None:
        for name in (
            *("text_vocab_size", "codebook_size", "text_sequence_length", "image_grid_size", "hidden_size"),
            *("num_hidden_layers", "num_attention_heads", "head_dim", "conv_kernel_size", "feed_forward_multiplier"),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number of at least 1.")
        for name in ("attention_dropout", "feed_forward_dropout", "caption_dropout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{name} is {value!r}, expected a number from 0 up to but not including 1.")
        for name in ("image_loss_weight", "layer_norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}, expected a number above 0.")

    def _check_choices(self) -> None:
        for kind in (*self.attention_pattern, self.final_attention):
            if kind not in ATTENTION_KINDS:
                raise ValueError(f"Attention kind {kind!r} is unknown, expected one of {', '.join(ATTENTION_KINDS)}.")
        if self.conv_window not in CONV_WINDOWS:
            raise ValueError(f"conv_window is {self.conv_window!r}, expected one of {', '.join(CONV_WINDOWS)}.")
        if self.recompute not in RECOMPUTE_CHOICES:
            raise ValueError(f"recompute is {self.recompute!r}, expected one of {', '.join(RECOMPUTE_CHOICES)}.")

    def _check_sizes(self) -> None:
        if self.hidden_size % 4:
            raise ValueError(
                f"hidden_size is {self.hidden_size}, expected a multiple of 4, because the token shift moves quarters "
                f"of the channels. Use {self.hidden_size + -self.hidden_size % 4}."
            )
        if self.head_dim % 2 or self.head_dim < 6:
            raise ValueError(
                f"head_dim is {self.head_dim}, expected an even number of at least 6, because rotary positions turn "
                f"pairs of channels in three parts. Use {max(6, self.head_dim + self.head_dim % 2)}."
            )
        if self.conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size is {self.conv_kernel_size}, expected an odd number.")
        if not 0 < len(self.attention_pattern) < max(2, self.num_hidden_layers):
            raise ValueError(
                f"attention_pattern has {len(self.attention_pattern)} kinds, but num_hidden_layers is "
                f"{self.num_hidden_layers}, one of which is the last layer. Expected at least one kind and "
                f"fewer kinds than layers. Shorten it, or use {max(2, len(self.attention_pattern) + 1)} layers."
            )
        if type(self.pad_token_id) is not int or not 0 <= self.pad_token_id < self.text_vocab_size:
            raise ValueError(
                f"pad_token_id is {self.pad_token_id!r}, expected a text id in [0, {self.text_vocab_size}), "
                f"the range of text_vocab_size."
            )

    @property
    def text_block_length(self) -> int:
        """Length of `<bos>` and the text; the index of the first image position."""
        return self.text_sequence_length + 1

    @property
    def num_image_codes(self) -> int:
        """Image codes of one image."""
        return self.image_grid_size**2

    @property
    def sequence_length(self) -> int:
        """Number of predicted positions: text tokens and image codes."""
        return self.text_sequence_length + self.num_image_codes

    @property
    def num_text_ids(self) -> int:
        """Size of the text part of the vocabulary: the tokenizer's pieces and one padding id for each position."""
        return self.text_vocab_size + self.text_sequence_length

    @property
    def vocab_size(self) -> int:
        """Size of the whole vocabulary: text ids, then image codes."""
        return self.num_text_ids + self.codebook_size

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """The attention kind of every layer."""
        pattern = self.attention_pattern
        cycled = (pattern[layer % len(pattern)] for layer in range(self.num_hidden_layers - 1))
        return (*cycled, self.final_attention)

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """For every layer the index of the shared weights it uses; only the last layer has the last index."""
        size = self.num_shared_groups - 1
        return (*(layer % size for layer in range(self.num_hidden_layers - 1)), size)

    @property
    def num_shared_groups(self) -> int:
        """Number of different sets of attention and feed-forward weights."""
        return 1 if self.num_hidden_layers == 1 else len(self.attention_pattern) + 1


__all__ = ["DalleCollabConfig"]
