"""Sizes of well-known transformers, from which parameters and activations follow."""

from dataclasses import dataclass

FAMILIES = ("gpt2", "bert", "gptj", "t5", "albert", "llama")


@dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    """A transformer of one of the families as transformers builds it, with its language-modelling head."""

    family: str
    """`gpt2` (GPT-2, GPT-3, DALL-E: a decoder), `bert` (an encoder), `gptj` (attention and feed-forward in parallel,
    probabilities stored), `t5` (encoder and decoder), `albert` (a BERT with smaller embeddings, whose layers share
    weights), `llama` (a decoder with rotary positions and a gated feed-forward layer, without biases)."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    """Layers; of `t5` those of the encoder."""

    num_heads: int
    wide_size: int
    """Channels inside the feed-forward layer."""

    max_sequence_length: int
    """Longest sequence; for `t5`, which has no limit, the one it was trained on."""

    head_size: int
    embedding_size: int | None = None
    """Of `albert`: channels of the embeddings; None: as many as the layers have."""

    num_key_value_heads: int | None = None
    """Of `llama`: heads of keys and values; None: as many as of queries."""

    num_shared_groups: int | None = None
    """Sets of weights that the layers cycle through; None: each layer has its own."""

    num_decoder_layers: int = 0
    """Of `t5`."""

    is_gated: bool = False
    """Of `t5`: the feed-forward layer has a gate (version 1.1)."""

    has_tied_table: bool = True
    """Whether the head uses the embedding's table."""

    num_token_types: int = 2
    """Of `bert`."""

    has_slow_gelu: bool = True
    """Whether the activation is the formula `gelu_new` written out, which stores five tensors instead of two."""

    has_dropout: bool = True
    """Whether hidden states are dropped in training, for which one byte a value is stored."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; expected one of {', '.join(FAMILIES)}.")
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "wide_size", "head_size"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected a whole number of at least 1.")

    @property
    def inner_size(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_size

    @property
    def table_size(self) -> int:
        """Values of the embedding's table."""
        return self.vocab_size * (self.embedding_size or self.hidden_size)

    @property
    def key_value_size(self) -> int:
        """Channels of all heads of keys."""
        return (self.num_key_value_heads or self.num_heads) * self.head_size

    def parameter_shapes(self, num_shared_groups: int | None = None) -> dict[tuple[int, ...], int]:
        """Return how many parameters there are of every shape; layers cycle through `num_shared_groups` sets."""
        shapes: dict[tuple[int, ...], int] = {}
        for shape, number in self._outer_shapes():
            shapes[shape] = shapes.get(shape, 0) + number
        for kind, layers in (("encoder", self.num_layers), ("decoder", self.num_decoder_layers)):
            groups = min(num_shared_groups or self.num_shared_groups or layers, layers)
            for shape, number in self.layer_shapes(is_t5_decoder=kind == "decoder"):
                shapes[shape] = shapes.get(shape, 0) + number * groups
        return {shape: number for shape, number in shapes.items() if number}

    def layer_shapes(self, *, is_t5_decoder: bool = False) -> list[tuple[tuple[int, ...], int]]:
        """Return the shapes of one layer's parameters with their numbers."""
        hidden, inner, wide = self.hidden_size, self.inner_size, self.wide_size
        if self.family == "t5":
            attentions = 2 if is_t5_decoder else 1
            return [
                ((hidden, inner), 4 * attentions),
                ((wide, hidden), 3 if self.is_gated else 2),
                ((hidden,), attentions + 1),
            ]
        if self.family == "llama":
            return [((inner, hidden), 2), ((self.key_value_size, hidden), 2), ((wide, hidden), 3), ((hidden,), 2)]
        if self.family == "gptj":
            return [((hidden, inner), 4), ((wide, hidden), 2), ((wide,), 1), ((hidden,), 3)]
        if self.family == "gpt2":
            return [
                ((hidden, 3 * inner), 1),
                ((3 * inner,), 1),
                ((inner, hidden), 1),
                ((hidden, wide), 2),
                ((wide,), 1),
                ((hidden,), 6),
            ]
        return [((hidden, inner), 4), ((inner,), 3), ((wide, hidden), 2), ((wide,), 1), ((hidden,), 6)]

    def _outer_shapes(self) -> list[tuple[tuple[int, ...], int]]:
        hidden, table = self.hidden_size, (self.vocab_size, self.hidden_size)
        if self.family == "t5":
            # One table of relative positions for the encoder and one for the decoder.
            return [(table, 1 if self.has_tied_table else 2), ((32, self.num_heads), 2), ((hidden,), 2)]
        if self.family == "llama":
            return [(table, 1 if self.has_tied_table else 2), ((hidden,), 1)]
        if self.family == "albert":
            narrow = self.embedding_size or hidden
            return [
                ((self.vocab_size, narrow), 1 if self.has_tied_table else 2),
                ((self.max_sequence_length, narrow), 1),
                ((self.num_token_types, narrow), 1),
                ((hidden, narrow), 2),
                ((hidden,), 1),
                ((self.vocab_size,), 1),
                ((narrow,), 5),
            ]
        if self.family == "gptj":
            return [(table, 1 if self.has_tied_table else 2), ((self.vocab_size,), 1), ((hidden,), 2)]
        if self.family == "gpt2":
            return [
                (table, 1 if self.has_tied_table else 2),
                ((self.max_sequence_length, hidden), 1),
                ((hidden,), 2),
            ]
        return [
            (table, 1 if self.has_tied_table else 2),
            ((self.max_sequence_length, hidden), 1),
            ((self.num_token_types, hidden), 1),
            ((hidden, hidden), 1),
            ((self.vocab_size,), 1),
            ((hidden,), 5),
        ]
