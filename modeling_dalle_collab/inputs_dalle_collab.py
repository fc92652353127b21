"""Checks of the model's inputs; every message says what was seen, what was expected and what to do."""

import torch
from torch import Tensor

from .configuration_dalle_collab import DalleCollabConfig

_CURES = {
    "input_ids": "Make them with the run's processor: processor(text=captions).",
    "image_codes": "Encode the images with the codec that the run's processor_config.json names.",
    "image_prompt": "Encode the image with the codec that the run's processor_config.json names; take its first codes.",
}


def check_text(input_ids: Tensor, config: DalleCollabConfig, device: torch.device) -> None:
    """Raise `ValueError` unless `input_ids` is (batch, text) integers in [0, text_vocab_size) on that device."""
    _check_ids("input_ids", input_ids, config.text_sequence_length, config.text_vocab_size)
    _check_device("input_ids", input_ids, device)


def check_image_codes(image_codes: Tensor, config: DalleCollabConfig, device: torch.device, batch: int) -> None:
    """Raise `ValueError` unless `image_codes` is (batch, image) integers in [0, codebook_size) on that device."""
    _check_ids("image_codes", image_codes, config.num_image_codes, config.codebook_size)
    _check_device("image_codes", image_codes, device)
    _check_rows("image_codes", image_codes, batch)


def check_image_prompt(image_prompt: Tensor, config: DalleCollabConfig, device: torch.device, batch: int) -> None:
    """Raise `ValueError` unless it is (batch, given) integers in [0, codebook_size), fewer than an image has."""
    most = config.num_image_codes - 1
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
    if ids.dim() != 2 or ids.shape[1] != length or ids.is_floating_point():
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)} and dtype {ids.dtype}, expected (batch, {length}) integers. "
            f"{_CURES[name]}"
        )
    # Compiled code cannot look at values; meta tensors and fake ones, which are a class of their own, have none.
    if torch.compiler.is_compiling() or ids.device.type == "meta" or type(ids) is not Tensor or not ids.numel():
        return
    lowest, highest = (int(value) for value in ids.long().aminmax())  # torch has no extremes of unsigned numbers
    if lowest < 0 or highest >= size:
        raise ValueError(f"{name} has values from {lowest} to {highest}, expected [0, {size}). {_CURES[name]}")
