"""Our model and dalle-pytorch with equal weights, and the sizes at which the benchmark compares them."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_checkpoint import DallePytorchCheckpoint, build_model

sys.path.insert(0, str(Path(__file__).parents[1] / "ancestor"))

SIZE_NAMES = (
    *("text_vocab_size", "codebook_size", "text_sequence_length", "image_grid_size"),
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
)
SMALL_SIZES = {"hidden_size": 256, "num_hidden_layers": 16, "num_attention_heads": 8, "head_dim": 32}
SMALL_SIZES |= {"text_sequence_length": 64, "image_grid_size": 16}
SIZES = {"small": SMALL_SIZES, "paper": {}, "paper-256": {"codebook_size": 16384, "image_grid_size": 16}}
QUICK_LAYERS = 6
# After training every layer matters; the first scale of the layers above 24 is 1e-6, which would hide their errors.
SCALE = 0.1


@dataclass(frozen=True, kw_only=True)
class Case:
    """A size of the model and how often things are repeated at it."""

    name: str
    """`small`, `paper`, or `paper-256`: the paper's with 256 codes out of 16,384 for a picture."""
    config: DalleCollabConfig
    """The sizes, with the window that dalle-pytorch 1.6.6 has."""
    batch: int
    """Sequences in a training step."""
    num_rounds: int
    """How often ours and the peer take turns."""
    num_steps: int
    """Timed training steps in a turn."""
    num_codes: int
    """Timed image codes in a turn."""


def benchmark_case(name: str, quick: bool) -> Case:
    """Return one of the cases."""
    sizes = SIZES[name] | ({"num_hidden_layers": QUICK_LAYERS} if quick else {})
    repeats = {"num_rounds": 2, "num_steps": 3, "num_codes": 48} if name == "small" else {}
    repeats = {"num_rounds": 1, "num_steps": 1, "num_codes": 8} if quick else repeats
    repeats = repeats or {"num_rounds": 1, "num_steps": 1, "num_codes": 4}
    config = DalleCollabConfig(conv_window="corner", **sizes)
    return Case(name=name, config=config, batch=4 if name == "small" else 1, **repeats)


def build_peer(config: DalleCollabConfig, **options) -> nn.Module:
    """Return dalle-pytorch's DALLE; its weights are the same in every process, whatever the options."""
    from ancestor import build_ancestor

    torch.manual_seed(0)
    sizes = {name: getattr(config, name) for name in SIZE_NAMES}
    kinds = dict(attention_pattern=config.attention_pattern, final_attention=config.final_attention)
    peer = build_ancestor(**sizes, **kinds, **options)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if name.endswith(".scale"):
                parameter.fill_(SCALE)
    return peer


def build_ours(config: DalleCollabConfig, peer: nn.Module | None = None) -> DalleCollabForConditionalGeneration:
    """Return our model over the very tensors of `peer`, a reversible one, or of a new one."""
    state = (build_peer(config) if peer is None else peer).state_dict()
    return build_model(DallePytorchCheckpoint.from_tensors(state), config)


def example_batch(config: DalleCollabConfig, batch: int) -> tuple[Tensor, Tensor]:
    """Return captions that fill a quarter of their places, and image codes."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(2, config.text_vocab_size, (batch, config.text_sequence_length), generator=generator)
    text[:, config.text_sequence_length // 4 :] = config.pad_token_id
    codes = torch.randint(0, config.codebook_size, (batch, config.num_image_codes), generator=generator)
    return text, codes
