"""Checks of the model's inputs; every message says what was seen, what was expected and what to do."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .configuration_dalle_collab import DalleCollabConfig

# What of transformers' arguments changes nothing here: numbers that mean "off", and what matters only to what is off.
_OFF = {
    "num_beams": 1, "num_beam_groups": 1, "repetition_penalty": 1, "encoder_repetition_penalty": 1, "typical_p": 1,
    "top_h": 1, "min_p": 0, "penalty_alpha": 0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "epsilon_cutoff": 0, "eta_cutoff": 0, "diversity_penalty": 0, "min_length": 0, "min_new_tokens": 0,
}  # fmt: skip
_WITHOUT_EFFECT = {
    "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "length_penalty",
    "early_stopping", "renormalize_logits", "disable_compile", "low_memory", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "max_matching_ngram_size", "transformers_version",
}  # fmt: skip

_CURES = {
    "input_ids": "Make them with the run's processor: processor(text=captions).",
    "image_codes": "Encode the images with the codec that the run's processor_config.json names.",
    "image_prompt": "Encode the image with the codec that the run's processor_config.json names; take its first codes.",
}


def require_ids(name: str, ids: Tensor | None) -> Tensor:
    """Return ids; raise `ValueError` if they are missing, or not a tensor."""
    if not isinstance(ids, Tensor):
        raise ValueError(f"{name} is {_shown(ids)}, expected a tensor of integers, a row a sample. {_CURES[name]}")
    return ids


def check_text(input_ids: Tensor, config: DalleCollabConfig, device: torch.device) -> None:
    """Raise `ValueError` unless `input_ids` is (batch, text) integers in [0, text_vocab_size) on that device."""
    _check_ids("input_ids", input_ids, config.text_sequence_length, config.text_vocab_size)
    _check_device("input_ids", input_ids, device)


def check_image_codes(image_codes: Tensor, config: DalleCollabConfig, device: torch.device, batch: int) -> None:
    """Raise `ValueError` unless `image_codes` is (batch, image) integers in [0, codebook_size) on that device."""
    _check_ids("image_codes", image_codes, config.num_image_codes, config.codebook_size)
    _check_device("image_codes", image_codes, device)
    _check_rows("image_codes", image_codes, batch)


def check_attention_mask(mask: Tensor, input_ids: Tensor, config: DalleCollabConfig) -> None:
    """Raise `ValueError` unless it is shaped like `input_ids` and hides nothing but padding, which is learned."""
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}, expected that of input_ids, {tuple(input_ids.shape)}. "
            "Leave it out: captions are read whole."
        )
    is_padding = (input_ids == 0) | (input_ids == config.pad_token_id)
    if _has_values(mask) and (num_hidden := int(((mask.to(input_ids.device) == 0) & ~is_padding).sum())):
        raise ValueError(
            f"attention_mask hides {num_hidden} ids that are not padding, expected ones: captions are read whole. "
            f"Put pad_token_id, {config.pad_token_id}, in their place."
        )


def refuse_effects(method: str, values: Mapping[str, object], cure: str) -> None:
    """Raise `ValueError` for the first of transformers' arguments that would change something if it were known here."""
    for name, value in values.items():
        is_empty = value is None or value is False or (isinstance(value, list | tuple | dict) and not value)
        is_off = isinstance(value, int | float) and name in _OFF and value == _OFF[name]
        is_one_kind = name == "token_type_ids" and isinstance(value, Tensor) and not value.any()
        if is_empty or is_off or is_one_kind or name in _WITHOUT_EFFECT or name.startswith("_"):
            continue
        expected = f"expected {_OFF[name]} or nothing" if name in _OFF else "expected nothing"
        raise ValueError(f"{method} got {name}={_shown(value)}, which it does not know; {expected}. {cure}")


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return " ".join(repr(value).split())[:80]


def check_image_prompt(image_prompt: Tensor, config: DalleCollabConfig, device: torch.device, batch: int) -> None:
    """Raise `ValueError` unless it is (batch, given) integers in [0, codebook_size), fewer than an image has."""
    most = config.num_image_codes - 1
    require_ids("image_prompt", image_prompt)
    if image_prompt.dim() == 2 and image_prompt.shape[1] > most:
        raise ValueError(
            f"image_prompt gives {image_prompt.shape[1]} codes, expected at most {most}: nothing is left to draw. "
            "Pass only the upper part of the image."
        )
    length = image_prompt.shape[1] if image_prompt.dim() == 2 else most
    _check_ids("image_prompt", image_prompt, length, config.codebook_size)
    _check_device("image_prompt", image_prompt, device)
    _check_rows("image_prompt", image_prompt, batch)


def _check_rows(name: str, codes: Tensor, batch: int) -> None:
    if len(codes) != batch:
        raise ValueError(f"input_ids has {batch} rows and {name} {len(codes)}, expected one caption for each image.")


def _check_device(name: str, ids: Tensor, device: torch.device) -> None:
    if ids.device != device:
        raise ValueError(f"{name} is on {ids.device}, expected the model's {device}. Move it: {name}.to(model.device).")


def _check_ids(name: str, ids: Tensor, length: int, size: int) -> None:
    ids = require_ids(name, ids)
    if ids.dim() == 3 and name != "input_ids":
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)}, expected (batch, {length}): these are {ids.shape[1]} candidates of "
            f"each caption. Pass {name}.flatten(0, 1) and input_ids.repeat_interleave({ids.shape[1]}, dim=0)."
        )
    if ids.dim() != 2 or ids.shape[1] != length or ids.is_floating_point():
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)} and dtype {ids.dtype}, expected (batch, {length}) integers. "
            f"{_CURES[name]}"
        )
    if not _has_values(ids):
        return
    lowest, highest = (int(value) for value in ids.long().aminmax())  # torch has no extremes of unsigned numbers
    if lowest < 0 or highest >= size:
        raise ValueError(f"{name} has values from {lowest} to {highest}, expected [0, {size}). {_CURES[name]}")


def _has_values(ids: Tensor) -> bool:
    # Compiled code cannot look at values; meta tensors and fake ones, which are a class of their own, have none.
    is_real = ids.device.type != "meta" and type(ids) is Tensor
    return is_real and not torch.compiler.is_compiling() and ids.numel() > 0
