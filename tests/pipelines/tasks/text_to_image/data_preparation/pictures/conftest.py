"""Pictures as files."""

import io

import numpy as np
import pytest
from dirty_pictures import png_of_zeros
from PIL import Image

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import square_picture
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import PictureOptions


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


@pytest.fixture
def stored():
    return stored_picture


@pytest.fixture
def square():
    return square_array


@pytest.fixture
def zeros_png():
    return png_of_zeros
