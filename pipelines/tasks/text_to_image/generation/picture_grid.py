"""Lay ranked pictures out under their prompts, for people."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from hub_tools.atomic_files import written_whole
from hub_tools.printing.printable import printable
from pipelines.tasks.text_to_image.image_codes.thumbnails import PICTURE_SIDE, enlarged

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage

MARGIN, GAP = 16, 8
PROMPT_SIZE, LABEL_SIZE = 18, 13
MAX_COLUMNS = 8
MIN_WIDTH = 2 * PICTURE_SIDE
BACKGROUND, INK, FAINT = "white", (20, 20, 20), (110, 110, 110)
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def draw_picture_grid(rows: Sequence[tuple[str, Sequence["RankedImage"]]]) -> Image.Image:
    """Return one picture with, for each prompt, the prompt, its pictures in order of rank, and their CLIP scores.

    Long prompts are wrapped. Prompts in any script are drawn if a font on this machine has their letters.
    """
    if not rows or not all(pictures for _, pictures in rows):
        raise ValueError("There is nothing to draw: expected at least one prompt with at least one picture.")
    columns = min(MAX_COLUMNS, max(len(pictures) for _, pictures in rows))
    width = max(MIN_WIDTH, columns * (PICTURE_SIDE + GAP) - GAP) + 2 * MARGIN
    blocks = [_draw_block(prompt, pictures, width, columns) for prompt, pictures in rows]
    grid = Image.new("RGB", (width, sum(block.height for block in blocks)), BACKGROUND)
    top = 0
    for block in blocks:
        grid.paste(block, (0, top))
        top += block.height
    return grid


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write the picture atomically."""
    require_picture_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary:
        picture.save(temporary, format=Image.registered_extensions()[path.suffix.lower()])
        temporary.chmod(0o644)


def keep_picture(picture: Image.Image, folder: Path) -> Path:
    """Write the picture to `folder` unless it exists, and return its file, the same one for equal pictures.

    The file is never written a second time: somebody may be reading it.
    """
    content = f"{picture.mode}{picture.size}".encode() + picture.tobytes()
    path = folder / hashlib.sha256(content).hexdigest() / "picture.png"
    if path.exists():
        path.touch()  # so that a clean-up by age spares it
    else:
        save_picture(picture, path)
    return path


def require_picture_path(path: Path) -> None:
    """Raise ValueError if no picture can be written there, before any work is done."""
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise ValueError(f"{path} does not end in {', '.join(PICTURE_SUFFIXES)}. Name a picture, such as grid.png.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Name a picture in it, such as {path / 'grid.png'}.")


def wrap_text(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Return the text in lines of at most `width` pixels, broken at spaces, and inside words that are longer."""
    lines = [""]
    for word in printable(text).split():
        if lines[-1] and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for letter in word:
            if lines[-1] and font.getlength(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return [line for line in lines if line] or [""]


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont:
    """Return the font that has the most letters of the text, DejaVu Sans if it has all of them."""
    letters = frozenset(ord(letter) for letter in text if not letter.isspace())
    default = _default_font_path()
    if letters <= _letters_of(default):
        return ImageFont.truetype(default, size)
    best = max([default, *_system_font_paths()], key=lambda path: len(letters & _letters_of(path)))
    return ImageFont.truetype(best, size)


def _draw_block(prompt: str, pictures: Sequence["RankedImage"], width: int, columns: int) -> Image.Image:
    font, label_font = font_for(prompt, PROMPT_SIZE), font_for("", LABEL_SIZE)
    lines = wrap_text(prompt, font, width - 2 * MARGIN)
    line_height, cell_height = PROMPT_SIZE + 6, PICTURE_SIDE + LABEL_SIZE + 8 + GAP
    num_rows = -(-len(pictures) // columns)
    first_row = MARGIN + len(lines) * line_height + GAP
    block = Image.new("RGB", (width, first_row + num_rows * cell_height), BACKGROUND)
    draw = ImageDraw.Draw(block)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + number * line_height), line, font=font, fill=INK)
    for index, ranked in enumerate(pictures):
        left = MARGIN + index % columns * (PICTURE_SIDE + GAP)
        top = first_row + index // columns * cell_height
        block.paste(enlarged(ranked.image), (left, top))
        label = f"{index + 1}   CLIP {ranked.score:.2f}"
        draw.text((left, top + PICTURE_SIDE + 3), label, font=label_font, fill=FAINT)
    return block


def _default_font_path() -> str:
    # matplotlib carries DejaVu Sans, so the grid looks the same on machines without fonts.
    from matplotlib import get_data_path

    return str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


def _system_font_paths() -> list[str]:
    from matplotlib.font_manager import findSystemFonts

    return sorted(findSystemFonts())


@lru_cache(maxsize=512)
def _letters_of(path: str) -> frozenset[int]:
    from fontTools.ttLib import TTFont, TTLibError

    try:
        with TTFont(path, lazy=True, fontNumber=0) as font:
            return frozenset(font.getBestCmap() or ())
    except (TTLibError, OSError, KeyError):
        return frozenset()
