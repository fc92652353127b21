"""Reads published taming-transformers checkpoints (`.ckpt` with `.yaml`) without running any code in them."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch
import yaml

from pipelines.image_codes.vqgan_codec import VQGANCodec
from pipelines.image_codes.vqgan_config import CodecLoadError, VQGANConfig

QUANTIZER_OF_TARGET = {"GumbelVQ": "gumbel", "VQModel": "nearest"}


class InertObject:
    """Placeholder for an object of a class in the checkpoint: it accepts everything and does nothing."""

    def __init__(self, *arguments: Any, **options: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def read_taming_codec(checkpoint_path: str | os.PathLike, yaml_path: str | os.PathLike) -> VQGANCodec:
    """The codec of a published taming `.ckpt` with its `.yaml`; no code in the checkpoint is run."""
    codec = VQGANCodec(read_taming_config(yaml_path))
    codec.load_tensors(read_taming_tensors(checkpoint_path), str(checkpoint_path))
    return codec


def read_taming_tensors(checkpoint_path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """The tensors under `state_dict` of a Lightning checkpoint, by name; CodecLoadError as `read_checkpoint`."""
    content = read_checkpoint(checkpoint_path)
    tensors = tensors_of(content.get("state_dict", content))
    if not tensors:
        raise CodecLoadError(f"{checkpoint_path} has no tensors under `state_dict`, expected a VQGAN of taming.")
    return tensors


def read_checkpoint(checkpoint_path: str | os.PathLike) -> dict[str, Any]:
    """What a pickled checkpoint holds, tensors on the CPU.

    Lightning stores callback objects next to the tensors. Every class unknown to torch becomes an inert placeholder,
    and the file is read by torch's restricted reader, so that nothing in it is imported or called. CodecLoadError for a
    file that is not such a checkpoint, or one that tries to use the operating system.
    """
    path = Path(checkpoint_path)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        placeholders = [(type(name.rpartition(".")[2], (InertObject,), {}), name) for name in names]
        with torch.serialization.safe_globals(placeholders):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, ValueError, RuntimeError, EOFError, OSError) as error:
        raise CodecLoadError(
            f"{path} cannot be read as a tensors-only checkpoint: {_reason(error)} "
            "Expected a checkpoint saved by torch 1.6 or newer, from a source that you trust."
        ) from error
    return content if isinstance(content, dict) else {}


def tensors_of(part: Any) -> dict[str, torch.Tensor]:
    """The tensors in a part of a checkpoint, by name; none where the part is something else."""
    items = part.items() if isinstance(part, dict) else ()
    return {name: value for name, value in items if isinstance(name, str) and isinstance(value, torch.Tensor)}


def _reason(error: Exception) -> str:
    # torch's own text begins with advice to disable the safety check; the reason is the underlying error.
    cause = error.__context__ if isinstance(error.__context__, pickle.UnpicklingError) else error
    return str(cause).partition("\n")[0] or type(cause).__name__


def read_taming_config(yaml_path: str | os.PathLike) -> VQGANConfig:
    """The sizes in a taming model `.yaml`; CodecLoadError if it describes another kind of model."""
    path = Path(yaml_path)
    try:
        model = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
        target = model["target"].rpartition(".")[2]
        parameters = model["params"]
        sizes = parameters["ddconfig"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise CodecLoadError(
            f"{path} is not a taming model description: {error!r}. Use the checkpoint's own .yaml."
        ) from error
    if target not in QUANTIZER_OF_TARGET:
        raise CodecLoadError(f"{path} describes a {target} with an unknown quantizer; expected GumbelVQ or VQModel.")
    if parameters.get("remap") or sizes.get("double_z"):
        raise CodecLoadError(f"{path} uses remap or double_z, which have no codes of their own; use a plain VQGAN.")
    return VQGANConfig(
        image_size=sizes["resolution"],
        codebook_size=parameters["n_embed"],
        embedding_dim=parameters["embed_dim"],
        z_channels=sizes["z_channels"],
        channels=sizes["ch"],
        channel_multipliers=tuple(sizes["ch_mult"]),
        num_residual_blocks=sizes["num_res_blocks"],
        attention_resolutions=tuple(sizes["attn_resolutions"]),
        quantizer=QUANTIZER_OF_TARGET[target],
    )
