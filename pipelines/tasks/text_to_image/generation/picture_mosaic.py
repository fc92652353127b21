"""Lay the pictures of many prompts out as one poster that fits a screen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from pipelines.tasks.text_to_image.generation.picture_grid import BACKGROUND, INK, font_for, wrap_text
from pipelines.tasks.text_to_image.image_codes.thumbnails import enlarged

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage

MAX_COLUMNS = 4
LARGE_SIDE, SMALL_GAP = 216, 6
NUM_SMALL = 3
SMALL_SIDE = (LARGE_SIDE - (NUM_SMALL - 1) * SMALL_GAP) // NUM_SMALL
MARGIN, GAP = 28, 24
PROMPT_SIZE, LINE_HEIGHT, PROMPT_GAP = 15, 20, 8


def draw_picture_mosaic(rows: Sequence[tuple[str, Sequence["RankedImage"]]]) -> Image.Image:
    """Return one picture with, for each prompt, its best picture, up to three others small beside it, and the prompt.

    Up to four prompts stand side by side; twelve make about 1,290 x 940 pixels. Scores are left out: see
    `draw_picture_grid`. Raises ValueError if there is nothing to draw.
    """
    if not rows or not all(pictures for _, pictures in rows):
        raise ValueError("There is nothing to draw: expected at least one prompt with at least one picture.")
    has_small = max(len(pictures) for _, pictures in rows) > 1
    width = LARGE_SIDE + (SMALL_GAP + SMALL_SIDE if has_small else 0)
    tiles = [_tile(prompt, pictures, width) for prompt, pictures in rows]
    columns = min(MAX_COLUMNS, len(tiles))
    bands = [tiles[first : first + columns] for first in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in band) for band in bands]
    size = (columns * (width + GAP) - GAP + 2 * MARGIN, sum(heights) + (len(bands) - 1) * GAP + 2 * MARGIN)
    mosaic, top = Image.new("RGB", size, BACKGROUND), MARGIN
    for band, height in zip(bands, heights, strict=True):
        for column, tile in enumerate(band):
            mosaic.paste(tile, (MARGIN + column * (width + GAP), top))
        top += height + GAP
    return mosaic


def _tile(prompt: str, pictures: Sequence["RankedImage"], width: int) -> Image.Image:
    font = font_for(prompt, PROMPT_SIZE)
    lines = wrap_text(prompt, font, width)
    tile = Image.new("RGB", (width, LARGE_SIDE + PROMPT_GAP + len(lines) * LINE_HEIGHT), BACKGROUND)
    tile.paste(enlarged(pictures[0].image, LARGE_SIDE), (0, 0))
    for place, ranked in enumerate(pictures[1 : 1 + NUM_SMALL]):
        corner = (LARGE_SIDE + SMALL_GAP, place * (SMALL_SIDE + SMALL_GAP))
        tile.paste(enlarged(ranked.image, SMALL_SIDE), corner)
    draw = ImageDraw.Draw(tile)
    for number, line in enumerate(lines):
        draw.text((0, LARGE_SIDE + PROMPT_GAP + number * LINE_HEIGHT), line, font=font, fill=INK)
    return tile
