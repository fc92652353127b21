"""Models by name, with the numbers that a table has of them; what a table lacks is counted.

A model is its `config.json`. `tests/golden/memory_table.py` makes the table.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

TABLE = Path(__file__).with_name("model_table.json")
DEFAULT_POSITIONS = 512
"""Tokens of a sample for models without a longest sequence; T5 was trained on as many."""


@dataclass(frozen=True)
class ModelSizes:
    """What a `config.json` says, whatever the order of its keys."""

    text: str

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Take the sizes from a configuration's values."""
        return cls(json.dumps(values, sort_keys=True, default=str))

    @property
    def values(self) -> dict[str, Any]:
        """The configuration's values."""
        return json.loads(self.text)

    @property
    def is_ours(self) -> bool:
        """Whether it is of this project's architecture."""
        return self.values.get("model_type") == "dalle_collab"


@dataclass(frozen=True, kw_only=True)
class StepKind:
    """What decides which tensors a step of a model makes, besides the number of samples."""

    sequence_length: int
    precision: str
    """`fp32`, `autocast`, or `pure` for a half type throughout."""
    recompute: str
    device: str

    @property
    def name(self) -> str:
        """What a table has it under."""
        return f"{self.sequence_length} {self.precision} {self.recompute} {self.device}"


ShapeCounts = tuple[tuple[tuple[int, ...], float], ...]


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """The numbers of a model that do not depend on how it is trained."""

    num_layers: int
    num_positions: int | None
    """The longest sequence; None: any."""
    vocab_size: int
    shapes: ShapeCounts
    """How many parameters there are of each shape."""
    layer_shapes: ShapeCounts
    """The same for one layer."""


def figures_of(sizes: ModelSizes) -> ModelFigures:
    """Return a model's numbers. Raises ValueError for models that are not known and sizes that do not fit together."""
    if stored := _table().get(sizes.text):
        values = dict(stored["figures"])
        for name in ("shapes", "layer_shapes"):
            values[name] = tuple((tuple(shape), number) for shape, number in values[name])
        return ModelFigures(**values)
    from pipelines.features.memory_estimate.architectures import figures

    return figures(sizes)


def activations_of(sizes: ModelSizes, kind: StepKind, num_samples: int) -> float:
    """Return the most bytes that a step holds besides parameters and their gradients; raises as `figures_of`."""
    lines = _table().get(sizes.text, {}).get("lines", {}).get(kind.name)
    if lines is None:
        from pipelines.features.memory_estimate.architectures import activation_lines

        lines = activation_lines(sizes, kind)
    return max(without + num_samples * each for without, each in lines)


@cache
def _table() -> dict[str, dict[str, Any]]:
    """Return the stored numbers by the model's text."""
    stored = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}
    return {MODEL_PRESETS[name].text: entry for name, entry in stored.items()}


def _gpt(layers: int, hidden: int, heads: int, *, sequence: int, **others: object) -> ModelSizes:
    return ModelSizes.of(
        dict(model_type="gpt2", n_layer=layers, n_embd=hidden, n_head=heads, n_positions=sequence) | others
    )


def _bert(layers: int, hidden: int, heads: int) -> ModelSizes:
    sizes = dict(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden)
    return ModelSizes.of(dict(model_type="bert", **sizes))


def _t5(layers: int, hidden: int, heads: int, head_size: int, wide: int) -> ModelSizes:
    sizes = dict(num_layers=layers, d_model=hidden, num_heads=heads, d_kv=head_size, d_ff=wide)
    return ModelSizes.of(dict(model_type="t5", **sizes))


MODEL_PRESETS: dict[str, ModelSizes] = {
    "Our model (Training Transformers Together)": ModelSizes.of(dict(model_type="dalle_collab")),
    "Our model, 256 codes for a picture (VQ-16)": ModelSizes.of(
        dict(model_type="dalle_collab", codebook_size=16384, image_grid_size=16)
    ),
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
    "GPT-3 XL": _gpt(24, 2048, 16, sequence=2048),
    "GPT-3 2.7B": _gpt(32, 2560, 32, sequence=2048),
    "GPT-3 6.7B": _gpt(32, 4096, 32, sequence=2048),
    "GPT-3 13B": _gpt(40, 5120, 40, sequence=2048),
    "GPT-3 175B": _gpt(96, 12288, 96, sequence=2048),
    "GPT-J 6B": ModelSizes.of(dict(model_type="gptj")),
    # Ramesh et al., 2021, appendix B.1: 64 layers, 62 heads of 64; 16 384 pieces of text and 8 192 image codes.
    "DALL-E 12B": _gpt(64, 3968, 62, sequence=1280, vocab_size=16384 + 8192, activation_function="gelu"),
}
"""Sizes by common name; those of GPT-3 from Brown et al., 2020, table 2.1, with heads that share the width evenly."""
