"""A small codec and small tars of captioned pictures."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec, VQGANConfig

CODEC_CONFIG = VQGANConfig(
    image_size=16,
    codebook_size=40,
    embedding_dim=8,
    z_channels=8,
    channels=32,
    channel_multipliers=(1,),
    num_residual_blocks=0,
    attention_resolutions=(),
    quantizer="nearest",
    patch_size=4,
    normalisation="position",
    middle_attention=False,
)


def new_codec(seed: int = 0) -> VQGANCodec:
    torch.manual_seed(seed)
    codec = VQGANCodec(CODEC_CONFIG).eval().requires_grad_(False)
    codec.codebook.normal_()
    return codec


def png(index: int, size: tuple[int, int] = (16, 16)) -> bytes:
    pixels = np.random.default_rng(index).integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_pictures_tar(path, indices: range, dirt: dict[int, dict] | None = None) -> None:
    """One sample per index; `dirt` changes caption, picture or fields of some."""
    with tarfile.open(path, "w") as tar:
        for index in indices:
            changes = (dirt or {}).get(index, {})
            content = {
                "png": changes.get("picture", png(index)),
                "txt": changes.get("caption", f"picture number {index}").encode(),
                "json": json.dumps({"NSFW": changes.get("nsfw", "UNLIKELY"), "similarity": 0.3}).encode(),
            }
            for suffix, body in content.items():
                if body is not None:
                    info = tarfile.TarInfo(f"{index:06d}.{suffix}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))


@pytest.fixture(scope="session")
def codec() -> VQGANCodec:
    return new_codec()


@pytest.fixture
def make_codec():
    return new_codec


@pytest.fixture
def make_tar():
    return write_pictures_tar


@pytest.fixture
def make_png():
    return png
