"""The codec in repositories: its code, where `transformers.pipeline` finds it, and its files. Light: no torch."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hub_tools.foreign.downloads import fetch_file
from hub_tools.places import is_repository_name

if TYPE_CHECKING:
    import torch

    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

CODEC_CODE_FILES = ("vqgan_codec.py", "vqgan_config.py", "vqgan_layers.py")

MOST_CODEC_BYTES = 2**32
"""Of a codec's weights: the largest published ones have a tenth of it."""


def copy_codec_code(folder: str | os.PathLike) -> None:
    """Copy the files with `VQGANCodec` into a model's folder, flat, as a class is loaded from the Hub."""
    for name in CODEC_CODE_FILES:
        shutil.copyfile(Path(__file__).with_name(name), Path(folder) / name)


def open_codec(
    place: str | os.PathLike, *, revision: str | None = None, device: "str | torch.device" = "cpu"
) -> "VQGANCodec":
    """Do what `VQGANCodec.from_pretrained` does, unless the repository's files are too large: TooLargeError."""
    from pipelines.tasks.text_to_image.image_codes.vqgan_codec import CONFIG_NAME, WEIGHTS_NAME, VQGANCodec

    if not Path(place).is_dir() and is_repository_name(str(place)):
        config = fetch_file(str(place), CONFIG_NAME, revision=revision)
        fetch_file(str(place), WEIGHTS_NAME, revision=config.parent.name, most_weights_bytes=MOST_CODEC_BYTES)
        place = config.parent
    return VQGANCodec.from_pretrained(place, device=device)
