"""Lay the pictures of many prompts out as one poster that fits a screen."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from pipelines.tasks.text_to_image.generation.picture_grid import BACKGROUND, INK, font_for, wrap_text
from pipelines.tasks.text_to_image.image_codes.thumbnails import enlarged

MAX_COLUMNS = 4
LARGE_SIDE, SMALL_GAP = 216, 6
NUM_SMALL = 3
SMALL_SIDE = (LARGE_SIDE - (NUM_SMALL - 1) * SMALL_GAP) // NUM_SMALL
MARGIN, GAP = 28, 24
PROMPT_SIZE, LINE_HEIGHT, PROMPT_GAP = 15, 20, 8
RIGHT, WRONG = (20, 110, 50), (176, 32, 32)


def draw_picture_mosaic(
    rows: Sequence[tuple[str, Sequence[Image.Image]]], faults: Sequence[Sequence[str]] | None = None
) -> Image.Image:
    """Return one picture with, for each prompt, its best picture, up to three others small beside it, and the prompt.

    faults: for each prompt what is wrong with its best picture, a tick if nothing is; None: nobody has judged them.
    Up to four prompts stand side by side; twelve make about 1,290 x 940 pixels. Scores are left out: see
    `draw_picture_grid`. Raises ValueError if there is nothing to draw.
    """
    if not rows or not all(pictures for _, pictures in rows):
        raise ValueError("There is nothing to draw: expected at least one prompt with at least one picture.")
    has_small = max(len(pictures) for _, pictures in rows) > 1
    width = LARGE_SIDE + (SMALL_GAP + SMALL_SIDE if has_small else 0)
    judged = [None] * len(rows) if faults is None else faults
    tiles = [_tile(*row, width, wrong) for row, wrong in zip(rows, judged, strict=True)]
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


def _tile(prompt: str, pictures: Sequence[Image.Image], width: int, faults: Sequence[str] | None) -> Image.Image:
    font = font_for(prompt, PROMPT_SIZE)
    lines = [(line, INK) for line in wrap_text(prompt, font, width)]
    if faults is not None:
        lines.append((f"✗ {', '.join(faults)}", WRONG) if faults else ("✓", RIGHT))
    tile = Image.new("RGB", (width, LARGE_SIDE + PROMPT_GAP + len(lines) * LINE_HEIGHT), BACKGROUND)
    tile.paste(enlarged(pictures[0], LARGE_SIDE), (0, 0))
    for place, picture in enumerate(pictures[1 : 1 + NUM_SMALL]):
        corner = (LARGE_SIDE + SMALL_GAP, place * (SMALL_SIDE + SMALL_GAP))
        tile.paste(enlarged(picture, SMALL_SIDE), corner)
    draw = ImageDraw.Draw(tile)
    for number, (line, colour) in enumerate(lines):
        draw.text((0, LARGE_SIDE + PROMPT_GAP + number * LINE_HEIGHT), line, font=font, fill=colour)
    return tile
