"""What a picture looks like in 16 bytes: two that look the same differ in few of the bits."""

import hashlib
import io
import warnings

import imagehash
import numpy as np
from PIL import Image, ImageOps

from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import PICTURE_FORMATS

FINGERPRINT_BYTES = 16
MOST_PIXELS = 2**26
"""Of a picture that is compared; JPEGs are decoded at a fraction and may be larger."""
SIDE = 32
LEAST_CONTRAST = 4.0
"""Standard deviation of grey values below which a picture has no structure to compare."""
COLOUR_LEVELS = 20


def fingerprint(content: bytes) -> bytes | None:
    """The 64 bits of imagehash's `phash`, and the mean colour in 60; None for a picture that cannot be compared.

    Each channel of the colour is a row of 20 bits of which the first ones are set, so that the distance in bits is one
    in colour: a red and a blue star have the same structure and are no duplicates.
    """
    try:
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            Image.open(io.BytesIO(content), formats=PICTURE_FORMATS) as opened,
        ):
            if opened.format != "JPEG" and opened.width * opened.height > MOST_PIXELS:
                return None
            opened.draft("RGB", (4 * SIDE, 4 * SIDE))
            picture = ImageOps.exif_transpose(opened.convert("RGBA")).convert("RGB")
            picture = picture.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return None
    pixels = np.asarray(picture, np.float32)
    if pixels.mean(axis=2).std() < LEAST_CONTRAST:
        return None
    structure = imagehash.phash(picture).hash.reshape(-1)
    levels = np.round(pixels.mean(axis=(0, 1)) / 255 * COLOUR_LEVELS)
    colour = (np.arange(COLOUR_LEVELS) < levels[:, None]).reshape(-1)
    return np.packbits(np.concatenate([structure, colour])).tobytes().ljust(FINGERPRINT_BYTES, b"\0")


def digest_of(content: bytes) -> int:
    """64 bits that only the same bytes have."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
