"""Random weights with the names and shapes that LlamaGen's own code gave; `test_llamagen_checkpoint.py` says how."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

GOLDEN = (
    Path(__file__).parents[1] / "pipelines" / "tasks" / "text_to_image" / "image_codes" / "llamagen_vq16.safetensors"
)


def golden_shapes(name: str = "shapes") -> dict[str, list[int]]:
    """Return the shapes of the golden model's tensors, or of `published_shapes`."""
    with safe_open(GOLDEN, "pt") as file:
        return json.loads(file.metadata()[name])


def drawn_weights(random: np.random.RandomState, **shapes: list[int]) -> dict[str, torch.Tensor]:
    """Return weights under which signals neither grow nor vanish; `shapes` replaces some of the golden model's."""
    weights = {}
    for name, shape in sorted((golden_shapes() | shapes).items()):
        values = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 4:
            values /= np.sqrt(np.prod(shape[1:]), dtype=np.float32)
        elif len(shape) == 1:
            values = 0.1 * values + (1 if "norm" in name and name.endswith("weight") else 0)
        weights[name] = torch.from_numpy(values.astype(np.float32))
    return weights
