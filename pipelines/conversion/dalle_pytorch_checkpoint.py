"""Reads a state dict of dalle-pytorch, checks all of it, and names its tensors as ours.

No code in a file is run: `.pt` goes through torch's restricted reader, `.safetensors` contains only tensors.
"""

import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from pipelines.conversion.dalle_pytorch_names import (
    HEAD,
    TIED_VIEWS,
    KeyLayout,
    ancestor_names,
    check_names,
    count_layers,
    find_layout,
)

PICKLE_SUFFIXES = (".pt", ".pth")
SAFETENSORS_SUFFIX = ".safetensors"
MODEL_PREFIX = "model."
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

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "DallePytorchCheckpoint":
        """Check the names of a state dict. Raises ValueError for a model that ours cannot express, and says why."""
        if all(name.startswith(MODEL_PREFIX) for name in tensors):
            tensors = {name.removeprefix(MODEL_PREFIX): tensor for name, tensor in tensors.items()}
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(CODEC_PREFIX)}
        layout, num_layers = find_layout(own), count_layers(own)
        check_names(own, num_layers, layout)
        _check_tied(own)
        own = {name: tensor for name, tensor in own.items() if name not in TIED_VIEWS}
        num_codec_tensors = sum(name.startswith(CODEC_PREFIX) for name in tensors)
        return cls(tensors=own, layout=layout, num_layers=num_layers, num_codec_tensors=num_codec_tensors)

    @classmethod
    def read(cls, path: Path) -> "DallePytorchCheckpoint":
        """Read a `.pt`, `.pth` or `.safetensors` file. Raises ValueError if it is not such a checkpoint."""
        return cls.from_tensors(read_tensors(path))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU, without running code. Raises ValueError for other files."""
    if path.suffix == SAFETENSORS_SUFFIX:
        return _read_safetensors(path)
    if path.suffix not in PICKLE_SUFFIXES:
        raise ValueError(
            f"{path.name} ends in {path.suffix or 'nothing'}, expected .pt, .pth or .safetensors. Rename it if it is "
            "a state dict."
        )
    return _tensors_by_name(_read_pickle(path), path)


def _read_pickle(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            # Warnings about pickles not written by torch; they are refused below.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path.name} contains more than tensors ({_reason(error)}), and reading that could run foreign code; "
            "expected a state dict. If you trust the file, save only its tensors: "
            "torch.save({name: tensor for name, tensor in state_dict.items()}, 'dalle.pt')"
        ) from error
    except (RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(
            f"{path.name} is not a complete torch file ({_reason(error)}); expected a state dict. Download it again."
        ) from error


def _reason(error: Exception) -> str:
    # torch's own text begins with advice to disable the safety check; the reason is the underlying error.
    cause = error.__context__ if isinstance(error.__context__, pickle.UnpicklingError) else error
    return str(cause).partition("\n")[0].partition(". ")[0] or type(cause).__name__


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            # safetensors' `save_model` writes a shared tensor once and keeps its other names as metadata.
            others = {name: kept for name, kept in (file.metadata() or {}).items() if kept in tensors}
    except SafetensorError as error:
        raise ValueError(f"{path.name} is not a complete safetensors file ({error}). Download it again.") from error
    return tensors | {name: tensors[kept] for name, kept in others.items()}


def _tensors_by_name(content: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} contains a {type(content).__name__}, expected a state dict: tensors by name.")
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{path.name} contains a {type(value).__name__} under {name!r}, expected a tensor, as in a state dict. "
                "Save only the state dict: torch.save(dalle.state_dict(), 'dalle.pt')"
            )
    return dict(content)


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
