"""Pictures as files."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from pipelines.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.data_preparation.pictures.decoding import square_picture
from pipelines.data_preparation.pictures.picture_options import PictureOptions


def stored_picture(picture: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def square_array(
    content: bytes, side: int = 16, *, max_aspect_ratio: float = 1000.0, **options
) -> np.ndarray | DropReason:
    """(side, side, 3) uint8, or why there is none."""
    policy = FilterPolicy(max_aspect_ratio=max_aspect_ratio)
    squared = square_picture(content, side, policy, PictureOptions(**options))
    if isinstance(squared, DropReason):
        return squared
    return np.frombuffer(squared.pixels, np.uint8).reshape(side, side, 3)


def png_of_zeros(width: int, height: int, *, colour: int = 2, is_interlaced: bool = False) -> bytes:
    """A whole PNG of black pixels, written without having them in memory: 13,000 x 13,000 are 0.5 MB."""
    bytes_per_row = 1 + width * {0: 1, 2: 3, 6: 4}[colour]
    packer, packed = zlib.compressobj(1), []
    for _ in range(height):
        packed.append(packer.compress(bytes(bytes_per_row)))
    if is_interlaced:  # each of the seven passes has its own filter bytes; a few too many do no harm
        packed.append(packer.compress(bytes(8 * height)))
    packed.append(packer.flush())
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, colour, 0, 0, int(is_interlaced)])
    chunks = [(b"IHDR", header), (b"IDAT", b"".join(packed)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4) + name + body + zlib.crc32(name + body).to_bytes(4) for name, body in chunks
    )


@pytest.fixture
def stored():
    return stored_picture


@pytest.fixture
def square():
    return square_array


@pytest.fixture
def zeros_png():
    return png_of_zeros
