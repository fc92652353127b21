"""Small pictures side by side, and tensors as pictures."""

from collections.abc import Sequence

import torch
from PIL import Image

PICTURE_SIDE = 192
"""Pixels of the longer side of a picture in the grid; small pictures are enlarged to it."""


def to_picture(image: torch.Tensor) -> Image.Image:
    """Return `image: (3, height, width)` float in [0, 1] as an RGB picture, rounded to 8 bits."""
    pixels = (image.detach().clamp(0, 1) * 255).round().to("cpu", torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def draw_thumbnails(rows: Sequence[Sequence[Image.Image]], side: int) -> Image.Image:
    """Return rows of small pictures as one, without any text; `side` is the longer side of a small one in pixels."""
    if not rows or not all(rows):
        raise ValueError("There is nothing to draw: expected at least one row with at least one picture.")
    grid = Image.new("RGB", (max(map(len, rows)) * side, len(rows) * side), "white")
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            grid.paste(enlarged(picture, side), (column * side, row * side))
    return grid


def enlarged(picture: Image.Image, side: int = PICTURE_SIDE) -> Image.Image:
    """Return the picture in the size that it has in a grid, so that people can see pictures of few pixels."""
    factor = side / max(picture.size)
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    return picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)
