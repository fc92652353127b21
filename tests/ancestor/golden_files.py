"""What dalle-pytorch 1.6.6 and 1.4.2 computed for one small model with random weights (float32, one thread).

The files hold its weights, inputs, logits, losses, gradients and greedily generated tokens.
"""

import json
from pathlib import Path

from safetensors.torch import load_file

FOLDER = Path(__file__).parents[1] / "modeling_dalle_collab" / "golden"


def golden_settings() -> dict:
    """Return the sizes and the losses."""
    return json.loads((FOLDER / "golden_config.json").read_text())


def golden_tensors() -> dict:
    """Return inputs and outputs; those of 1.4.2 begin with `legacy_conv/`."""
    return load_file(FOLDER / "golden_io.safetensors")


def golden_state_dict() -> dict:
    """Return the state dict as dalle-pytorch 1.4.0 to 1.6.6 would: shared tensors under each of their names."""
    stored = {name: tensor.float() for name, tensor in load_file(FOLDER / "golden_weights.safetensors").items()}
    return stored | {name: stored[kept] for name, kept in golden_settings()["shared_key_aliases"].items()}
