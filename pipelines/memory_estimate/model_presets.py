"""Well-known models by name."""

from pipelines.memory_estimate.models.dalle_collab_sizes import DalleCollabSizes
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes

ModelSizes = DalleCollabSizes | TransformerSizes


def _gpt(layers: int, hidden: int, heads: int, head_size: int | None = None, *, sequence: int) -> TransformerSizes:
    return TransformerSizes(
        family="gpt2",
        vocab_size=50257,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        head_size=head_size or hidden // heads,
        wide_size=4 * hidden,
        max_sequence_length=sequence,
    )


def _bert(layers: int, hidden: int, heads: int) -> TransformerSizes:
    return TransformerSizes(
        family="bert",
        vocab_size=30522,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        head_size=64,
        wide_size=4 * hidden,
        max_sequence_length=512,
        has_slow_gelu=False,
    )


def _t5(layers: int, hidden: int, heads: int, head_size: int, wide: int) -> TransformerSizes:
    return TransformerSizes(
        family="t5",
        vocab_size=32128,
        hidden_size=hidden,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        head_size=head_size,
        wide_size=wide,
        max_sequence_length=512,
        has_slow_gelu=False,
    )


MODEL_PRESETS: dict[str, ModelSizes] = {
    "Our model (Training Transformers Together)": DalleCollabSizes(),
    "Our model, 256 codes for a picture (VQ-16)": DalleCollabSizes(codebook_size=16384, image_grid_size=16),
    "BERT base": _bert(12, 768, 12),
    "BERT large": _bert(24, 1024, 16),
    "T5 small": _t5(6, 512, 8, 64, 2048),
    "T5 base": _t5(12, 768, 12, 64, 3072),
    "T5 large": _t5(24, 1024, 16, 64, 4096),
    "T5 3B": _t5(24, 1024, 32, 128, 16384),
    "T5 11B": _t5(24, 1024, 128, 128, 65536),
    "GPT-2 S": _gpt(12, 768, 12, sequence=1024),
    "GPT-2 M": _gpt(24, 1024, 16, sequence=1024),
    "GPT-2 L": _gpt(36, 1280, 20, sequence=1024),
    "GPT-2 XL": _gpt(48, 1600, 25, sequence=1024),
    "GPT-3 S": _gpt(12, 768, 12, sequence=2048),
    "GPT-3 M": _gpt(24, 1024, 16, sequence=2048),
    "GPT-3 L": _gpt(24, 1536, 16, sequence=2048),
    "GPT-3 XL": _gpt(24, 2048, 24, 128, sequence=2048),
    "GPT-3 2.7B": _gpt(32, 2560, 32, sequence=2048),
    "GPT-3 6.7B": _gpt(32, 4096, 32, sequence=2048),
    "GPT-3 13B": _gpt(40, 5140, 40, 128, sequence=2048),
    "GPT-3 175B": _gpt(96, 12288, 96, sequence=2048),
    "GPT-J 6B": TransformerSizes(
        family="gptj",
        vocab_size=50400,
        hidden_size=4096,
        num_layers=28,
        num_heads=16,
        head_size=256,
        wide_size=16384,
        max_sequence_length=2048,
        has_tied_table=False,
        has_dropout=False,
    ),
    # Ramesh et al., 2021, appendix B.1: 64 layers, 62 heads of 64; 16 384 pieces of text and 8 192 image codes.
    "DALL-E 12B": TransformerSizes(
        family="gpt2",
        vocab_size=16384 + 8192,
        hidden_size=3968,
        num_layers=64,
        num_heads=62,
        head_size=64,
        wide_size=4 * 3968,
        max_sequence_length=1280,
        has_slow_gelu=False,
    ),
}
"""Sizes by common name; those of GPT-3 from Brown et al., 2020, table 2.1."""
