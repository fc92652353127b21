"""Pictures side by side in one picture, for people."""

import textwrap
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw

from hub_tools.printing.printable import printable

GAP = 4
SMALLEST_CELL = 128
CAPTION_LINES = 3
LINE_HEIGHT = 13
PIXELS_PER_LETTER = 6.2


def picture_grid(images: torch.Tensor, columns: int, captions: Sequence[str] | None = None) -> Image.Image:
    """One picture with the images in rows of `columns`, small ones enlarged without smoothing, captions beneath.

    images: (batch, 3, height, width) floats in [0, 1].
    """
    arrays = (images.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy() * 255 + 0.5).astype(np.uint8)
    factor = max(1, -(-SMALLEST_CELL // arrays.shape[1]))
    side = arrays.shape[1] * factor
    height = side + (CAPTION_LINES * LINE_HEIGHT + GAP if captions else 0)
    rows = -(-len(arrays) // columns)
    grid = Image.new("RGB", (columns * (side + GAP) + GAP, rows * (height + GAP) + GAP), "white")
    draw = ImageDraw.Draw(grid)
    for index, array in enumerate(arrays):
        corner = (GAP + index % columns * (side + GAP), GAP + index // columns * (height + GAP))
        grid.paste(Image.fromarray(array).resize((side, side), Image.Resampling.NEAREST), corner)
        if captions:
            _write_caption(draw, captions[index], (corner[0], corner[1] + side + GAP), side)
    return grid


def _write_caption(draw: ImageDraw.ImageDraw, caption: str, corner: tuple[int, int], width: int) -> None:
    lines = textwrap.wrap(printable(caption), max(8, int(width / PIXELS_PER_LETTER)))[:CAPTION_LINES]
    for number, line in enumerate(lines):
        draw.text((corner[0], corner[1] + number * LINE_HEIGHT), line, fill="black")
