"""Read an uploaded picture to complete: any file may be sent, and must do no harm."""

from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 50_000_000
"""A small file can expand to gigabytes; no ordinary camera takes larger pictures."""


def read_picture(path: Path | str) -> Image.Image:
    """Return the picture upright, as RGB. Raises ValueError if it is not a picture, is damaged, or is too large."""
    name = Path(path).name
    try:
        with Image.open(path) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(
                    f"{name} has {picture.width} x {picture.height} pixels, expected at most "
                    f"{MAX_PIXELS / 1e6:.0f} million. Make it smaller."
                )
            return ImageOps.exif_transpose(picture).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} is not a picture that can be read. Expected JPEG, PNG or WebP.") from error
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError) as error:  # what Pillow raises for damaged files
        raise ValueError(f"{name} is a damaged picture ({error}). Choose another file.") from error
