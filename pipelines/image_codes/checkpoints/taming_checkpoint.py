"""Reads published taming-transformers checkpoints (`.ckpt` with `.yaml`) without running any code in them."""

import dataclasses
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from pipelines.image_codes.vqgan_codec import VQGANCodec
from pipelines.image_codes.vqgan_config import CodecLoadError, VQGANConfig

QUANTIZER_OF_TARGET = {"GumbelVQ": "gumbel", "VQModel": "nearest"}

OF_TRAINING = ("loss.", "colorize")
"""How tensors that say nothing about codes begin: of the discriminator and the perceptual network, and of a plot."""

SIZES = ("n_embed", "embed_dim", "resolution", "z_channels", "ch", "ch_mult", "num_res_blocks", "attn_resolutions")
FIXED = {
    "double_z": False, "in_channels": 3, "out_ch": 3, "resamp_with_conv": True, "tanh_out": False,
    "give_pre_end": False, "use_linear_attn": False, "attn_type": "vanilla", "remap": None,
}  # fmt: skip
"""What this codec cannot have otherwise, under `ddconfig` and beside it."""
WITHOUT_EFFECT = frozenset({
    "dropout", "ddconfig", "lossconfig", "ckpt_path", "ignore_keys", "image_key", "colorize_nlabels", "monitor",
    "kl_weight", "temperature_scheduler_config", "scheduler_config", "learning_rate", "lr_g_factor", "use_ema",
    "batch_resize_range", "sane_index_shape",
})  # fmt: skip
"""What is about training alone, or about the shape in which codes are returned."""


class InertObject:
    """Placeholder for an object of a class in the checkpoint: it accepts everything and does nothing."""

    def __init__(self, *arguments: Any, **options: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def read_taming_codec(checkpoint_path: str | os.PathLike, yaml_path: str | os.PathLike) -> VQGANCodec:
    """The codec of a published taming `.ckpt` with its `.yaml`; no code in the checkpoint is run.

    Which levels have self-attention is read from the tensors: the `.yaml` names them by their resolution, so that with
    another `resolution` it names others, or none.
    """
    tensors, config = read_taming_tensors(checkpoint_path), read_taming_config(yaml_path)
    codec = VQGANCodec(dataclasses.replace(config, attention_resolutions=_attention_resolutions(tensors, config)))
    state = {name: tensor for name, tensor in tensors.items() if not name.startswith(OF_TRAINING)}
    codec.load_tensors(state, str(checkpoint_path))
    return codec


def _attention_resolutions(tensors: Mapping[str, torch.Tensor], config: VQGANConfig) -> tuple[int, ...]:
    levels = range(len(config.channel_multipliers))
    named = {config.image_size >> level: f"encoder.down.{level}.attn.0.q.weight" in tensors for level in levels}
    found = tuple(size for size, has_attention in named.items() if has_attention)
    given = config.attention_resolutions
    # In the order of the description, which a codec's fingerprint has always had.
    return given if {size for size in given if size in named} == set(found) else found


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
        settings = model["params"] | model["params"]["ddconfig"]
        sizes = {name: settings[name] for name in SIZES}
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise CodecLoadError(
            f"{path} is not a taming model description: {error!r}. Use the checkpoint's own .yaml."
        ) from error
    if target not in QUANTIZER_OF_TARGET:
        raise CodecLoadError(f"{path} describes a {target} with an unknown quantizer; expected GumbelVQ or VQModel.")
    for name, value in settings.items():
        if name in FIXED and (value or None) != (FIXED[name] or None):
            raise CodecLoadError(f"{path} sets {name} to {value!r}, expected {FIXED[name]!r}: use a plain VQGAN.")
        if name not in (*SIZES, *FIXED, *WITHOUT_EFFECT):
            raise CodecLoadError(
                f"{path} sets {name} to {value!r}, which this codec does not know: its codes might be others. Remove "
                "it if it is about training alone."
            )
    return VQGANConfig(
        image_size=sizes["resolution"],
        codebook_size=sizes["n_embed"],
        embedding_dim=sizes["embed_dim"],
        z_channels=sizes["z_channels"],
        channels=sizes["ch"],
        channel_multipliers=tuple(sizes["ch_mult"]),
        num_residual_blocks=sizes["num_res_blocks"],
        attention_resolutions=tuple(sizes["attn_resolutions"]),
        quantizer=QUANTIZER_OF_TARGET[target],
    )
