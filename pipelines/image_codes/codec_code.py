"""The codec's code for a model's repository, where `transformers.pipeline` finds it. Light: no torch."""

import os
import shutil
from pathlib import Path

CODEC_CODE_FILES = ("vqgan_codec.py", "vqgan_config.py")


def copy_codec_code(folder: str | os.PathLike) -> None:
    """Copy the files with `VQGANCodec` into a model's folder, flat, as a class is loaded from the Hub."""
    for name in CODEC_CODE_FILES:
        shutil.copyfile(Path(__file__).with_name(name), Path(folder) / name)
