"""Reads published taming-transformers checkpoints (`.ckpt` with `.yaml`) without running any code in them."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml

from pipelines.tasks.text_to_image.image_codes.checkpoints.foreign_checkpoint import (
    names_of,
    read_checkpoint,
    weights_with,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec
from pipelines.tasks.text_to_image.image_codes.vqgan_config import CodecLoadError, VQGANConfig

MARK = "decoder.conv_in.weight"
"""A tensor that every VQGAN of taming has."""

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
    """The tensors of the VQGAN in a checkpoint, by taming's names; CodecLoadError if it is unclear which, or none."""
    content = read_checkpoint(checkpoint_path)
    tensors = weights_with(content, MARK, str(checkpoint_path))
    if not tensors:
        seen = ", ".join(names_of(content)[:3]) or "nothing"
        raise CodecLoadError(
            f"{checkpoint_path} has {seen}, but no tensor {MARK}, expected a VQGAN of taming. Save its weights: "
            "torch.save({'state_dict': model.state_dict()}, 'last.ckpt')"
        )
    return tensors


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
