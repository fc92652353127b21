"""Read a picture that somebody hands in, to be completed: any file may come, and must not do harm."""

from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 50_000_000
"""A small file can unfold to gigabytes; no camera that people hold in their hands takes larger pictures."""


def read_picture(path: Path | str) -> Image.Image:
    """Return the picture upright, as RGB. Raises ValueError for what is no picture, is damaged, or is too large."""
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
