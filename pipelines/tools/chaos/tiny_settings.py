"""Sizes of a tiny model."""

TEXT_SEQUENCE_LENGTH = 8

TINY_MODEL_SETTINGS = dict(
    text_sequence_length=TEXT_SEQUENCE_LENGTH,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=2,
    head_dim=16,
    attention_pattern=["row", "column"],
    recompute="none",
)
