"""Reads a checkpoint of dalle-pytorch, checks all of its tensors, and names them as ours. No code in a file is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.tasks.text_to_image.conversion.dalle_pytorch_names import (
    HEAD,
    TIED_VIEWS,
    KeyLayout,
    ancestor_names,
    check_names,
    count_layers,
    find_layout,
)
from pipelines.tasks.text_to_image.image_codes.checkpoints.foreign_checkpoint import (
    names_of,
    read_checkpoint,
    weights_with,
)

CODEC_PREFIX = "vae."


@dataclass(frozen=True, kw_only=True)
class DallePytorchCheckpoint:
    """The complete tensors of a model that ours can express, under dalle-pytorch's names."""

    tensors: dict[str, Tensor]
    """All tensors except the other views of the tied table."""
    layout: KeyLayout
    """Which names the layers' weights have."""
    num_layers: int
    """Number of layers."""
    num_codec_tensors: int = 0
    """Tensors of the codec (`vae.*`) that were left out."""
    notes: Mapping[str, object] = field(default_factory=dict)
    """What train_dalle.py writes beside the weights: `hparams`, `vae_params`, `version`, ... of any type."""

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, object], origin: str = "The checkpoint") -> "DallePytorchCheckpoint":
        """Check the names of a state dict, maybe within what another tool wrote around it.

        Raises ValueError for a model that ours cannot express, and says why.
        """
        notes = {name: value for name, value in tensors.items() if not isinstance(value, Tensor)}
        tensors = weights_with(tensors, f"{HEAD}.weight", origin) or dict.fromkeys(names_of(tensors))
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(CODEC_PREFIX)}
        layout, num_layers = find_layout(own), count_layers(own)
        check_names(own, num_layers, layout)
        _check_tied(own)
        own = {name: tensor for name, tensor in own.items() if name not in TIED_VIEWS}
        num_codec_tensors = sum(name.startswith(CODEC_PREFIX) for name in tensors)
        return cls(tensors=own, layout=layout, num_layers=num_layers, num_codec_tensors=num_codec_tensors, notes=notes)

    @classmethod
    def read(cls, path: Path) -> "DallePytorchCheckpoint":
        """Read a pickled or safetensors file. Raises ValueError if it is not such a checkpoint."""
        return cls.from_tensors(read_checkpoint(path), path.name)


def _check_tied(tensors: dict[str, Tensor]) -> None:
    for view, table in TIED_VIEWS.items():
        if view in tensors and not is_same(tensors[view], tensors[table]):
            raise ValueError(
                f"The checkpoint's {view} differs from {table}, expected the same table under both names, because our "
                "embeddings are tied. Only models trained with share_input_output_emb=True can be converted."
            )


def is_same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal; without comparing if they are the same tensor."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return first.data_ptr() == second.data_ptr() or torch.equal(first, second)


def convert_tensors(checkpoint: DallePytorchCheckpoint, config: DalleCollabConfig) -> dict[str, Tensor]:
    """Return the state dict of our model in float32. Raises ValueError for a tensor of another shape or not finite."""
    with torch.device("meta"):
        expected = DalleCollabForConditionalGeneration(config).state_dict()
    names = ancestor_names(config, checkpoint.layout)
    return {ours: _converted(checkpoint.tensors[names[ours]], names[ours], like) for ours, like in expected.items()}


def _converted(tensor: Tensor, name: str, like: Tensor) -> Tensor:
    if tensor.numel() != like.numel() or tensor.squeeze().shape != like.squeeze().shape:
        raise ValueError(
            f"The checkpoint's {name} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)} by the sizes of "
            f"{HEAD}.weight and the first layer. The file is damaged or of another model."
        )
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        raise ValueError(
            f"The checkpoint's {name}, {tensor.dtype}, has values other than finite floating-point numbers. Use a "
            "checkpoint from before the training diverged."
        )
    return tensor.detach().float().reshape(like.shape).contiguous()


def build_model(checkpoint: DallePytorchCheckpoint, config: DalleCollabConfig) -> DalleCollabForConditionalGeneration:
    """Return our model with the checkpoint's weights, in evaluation mode."""
    tensors = convert_tensors(checkpoint, config)
    with torch.device("meta"):
        model = DalleCollabForConditionalGeneration(config)
    model.load_state_dict(tensors, assign=True)
    return model.eval()
