"""Read an uploaded picture to complete: any file may be sent, and must do no harm."""

import threading
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 50_000_000
"""A small file can expand to gigabytes; no ordinary camera takes larger pictures."""

MAX_PIXELS_AT_ONCE = 25_000_000
"""Of formats that are unpacked as a whole: a WebP of 34 bytes takes 20 bytes for each of its pixels."""

LONGEST_SIDE = 2048
"""Larger pictures are made smaller at once: no codec reads more than a quarter of it."""

ONE_AT_A_TIME = threading.Lock()
"""A page's visitors may send many at once."""


def read_picture(path: Path | str) -> Image.Image:
    """Return the picture upright, as RGB, no side longer than `LONGEST_SIDE`.

    Raises ValueError if it is not a picture, is damaged, or is too large.
    """
    name = Path(path).name
    try:
        with ONE_AT_A_TIME, Image.open(path) as picture:
            most = MAX_PIXELS if picture.format in ("JPEG", "MPO") else MAX_PIXELS_AT_ONCE
            if picture.width * picture.height > most:
                raise ValueError(
                    f"{name} has {picture.width} x {picture.height} pixels, expected at most "
                    f"{most / 1e6:.0f} million. Make it smaller."
                )
            picture.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))  # JPEG alone: unpacked at a fraction of its size
            upright = picture if picture.mode == "RGB" else picture.convert("RGB")
            upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            return ImageOps.exif_transpose(upright)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} is not a picture that can be read. Expected JPEG, PNG or WebP.") from error
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError) as error:  # what Pillow raises for damaged files
        raise ValueError(f"{name} is a damaged picture ({error}). Choose another file.") from error
