"""From the bytes of a picture to a square of pixels: formats, orientation, depth, transparency, bounded memory.

Light: neither torch nor numpy, because every decoding process imports it.
"""

import contextlib
import io
import math
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy, drop_reason_of_size
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import PictureOptions

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
OTHER_FORMATS = {
    "HEIC": (4, (b"ftyphei", b"ftyphev", b"ftypmif1", b"ftypmsf1")),
    "JPEG XL": (0, (b"\xff\x0a", b"\0\0\0\x0cJXL ")),
    "JPEG 2000": (0, (b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  ")),
    "SVG": (0, (b"<svg", b"<?xml", b"<!DOCTYPE svg", b"\x1f\x8b")),
    "Photoshop": (0, (b"8BPS",)),
    "PDF": (0, (b"%PDF",)),
    "icon": (0, (b"\0\0\1\0",)),
}
"""Pictures that are not read, by where in the file they begin with what."""

WHITE_SPACE = b" \t\r\n\xef\xbb\xbf"

DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    ZeroDivisionError,
    AssertionError,
    RuntimeError,
    struct.error,
)
"""What Pillow raises for damaged files, seen in thousands of them with flipped bytes."""

SQUARE_AT_ONCE_PIXELS = 2**22
"""Up to here a picture is resized in one step. A larger one is first reduced strip by strip: copies of it in other
modes would take several times its memory."""

STRIP_PIXELS = 2**20
REDUCED_SIDES = 4
"""A picture is first reduced to this many times the side of its square; the last step is bicubic."""

BYTES_PER_PIXEL = {"WEBP": 16, "AVIF": 16}
"""What decoders of these formats take at their peak, measured: up to 15.4, and 11.9 with 8 bits."""

TIFF_COPIES = 3
"""A strip may be the whole picture, and turning it upright takes a copy; 2.5 measured."""

BYTES_OF_MODE = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
"""What Pillow keeps for a pixel; 4 in all other modes."""

MOST_PIXELS_PER_JPEG_BYTE = 512
"""Each block of 64 pixels takes a bit at least; with fewer bytes most of the picture would be grey without an error."""

THUMBNAIL_SIDE = 128

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by its orientation in EXIF."""

LYING = (5, 6, 7, 8)
"""Orientations whose width and height change places."""


@dataclass(frozen=True, kw_only=True)
class SquarePicture:
    """A picture as the codec takes it."""

    pixels: bytes
    """side x side x 3 bytes, rows first."""
    width: int
    """Pixels of the upright picture, before it became a square."""
    height: int
    """Pixels of the upright picture, before it became a square."""


def square_picture(
    image_bytes: bytes, side: int, policy: FilterPolicy, options: PictureOptions
) -> SquarePicture | DropReason:
    """The picture as a square of `side` pixels, upright, with its size; else why it is dropped.

    The first frame of an animation. Transparent areas become white; a cut-out, whose four corners are transparent, is
    shown whole, on white, whatever `fit` says. What the filter and the memory limit refuse is not decoded.
    """
    try:
        with _opened(image_bytes, options) as opened:
            width, height = opened.size
            if reason := drop_reason_of_size(width, height, policy):
                return reason
            if _draft(opened, 2 * side) > options.memory_mib * 2**20:
                return DropReason.TOO_MANY_PIXELS
            if opened.format in ("JPEG", "MPO") and width * height > MOST_PIXELS_PER_JPEG_BYTE * len(image_bytes):
                return DropReason.CORRUPT_IMAGE
            squared = _squared(opened, side, is_padded=options.fit == "pad")
            orientation = _orientation(opened)
            width, height = (height, width) if orientation in LYING else (width, height)
            pixels = _upright(squared, orientation).tobytes()
            return SquarePicture(pixels=pixels, width=width, height=height)
    except Image.DecompressionBombError:
        return DropReason.TOO_MANY_PIXELS
    except UnidentifiedImageError:
        return DropReason.UNSUPPORTED_FORMAT if other_format(image_bytes) else DropReason.CORRUPT_IMAGE
    except DAMAGE:
        return DropReason.CORRUPT_IMAGE


def thumbnail(image_bytes: bytes, options: PictureOptions) -> bytes | None:
    """A small JPEG of the picture for people, even of one that is cut off; None if nothing can be seen."""
    try:
        with _opened(image_bytes, options) as opened, _truncation_allowed():
            if _draft(opened, THUMBNAIL_SIDE) > options.memory_mib * 2**20:
                return None
            small = _padded(opened, THUMBNAIL_SIDE)
            stored = io.BytesIO()
            _upright(small, _orientation(opened)).save(stored, "JPEG", quality=75)
            return stored.getvalue()
    except (*DAMAGE, Image.DecompressionBombError):
        return None


def _draft(opened: Image.Image, side: int) -> int:
    """Decode large JPEGs at a fraction; return an upper bound of the bytes that decoding takes."""
    num_stored = opened.width * opened.height
    opened.draft("RGB", (side, side))
    if opened.format in BYTES_PER_PIXEL:
        return num_stored * BYTES_PER_PIXEL[opened.format]
    num_bytes = opened.width * opened.height * BYTES_OF_MODE.get(opened.mode, 4)
    if opened.format == "TIFF":
        return num_bytes * TIFF_COPIES
    if opened.info.get("progressive"):
        num_bytes += _coefficient_bytes(opened, num_stored)  # all of them are kept, whatever size is drafted
    return num_bytes


def other_format(image_bytes: bytes) -> str | None:
    """The name of a picture format that is not read here, judged by the first bytes; None for anything else."""
    return next(
        (
            name
            for name, (place, beginnings) in OTHER_FORMATS.items()
            if image_bytes[:256].lstrip(WHITE_SPACE)[place:].startswith(beginnings)
        ),
        None,
    )


def on_white(picture: Image.Image) -> Image.Image:
    """The picture as RGB with 8 bits; what was transparent is white."""
    return _whitened(picture, _value_range(picture))


@contextlib.contextmanager
def _opened(image_bytes: bytes, options: PictureOptions) -> Iterator[Image.Image]:
    # Damage that Pillow can live with is no warning here; sizes are judged by the caller.
    with warnings.catch_warnings(action="ignore"):
        if num_pixels_of_webp(image_bytes) * BYTES_PER_PIXEL["WEBP"] > options.memory_mib * 2**20:
            raise Image.DecompressionBombError("the canvas of a WebP picture is too large to be opened")
        with Image.open(io.BytesIO(image_bytes), formats=PICTURE_FORMATS) as opened:
            yield opened


def num_pixels_of_webp(image_bytes: bytes) -> int:
    """Pixels of a WebP picture, 0 for other files: its decoder takes memory for two of them before one can ask."""
    if image_bytes[:4] != b"RIFF" or image_bytes[8:12] != b"WEBP" or len(image_bytes) < 30:
        return 0
    kind = image_bytes[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(image_bytes[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        bits = int.from_bytes(image_bytes[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(image_bytes[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height


@contextlib.contextmanager
def _truncation_allowed() -> Iterator[None]:
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _coefficient_bytes(opened: Image.Image, num_pixels: int) -> int:
    layers = getattr(opened, "layer", ())
    largest = max((layer[1] for layer in layers), default=1) * max((layer[2] for layer in layers), default=1)
    return sum(2 * num_pixels * layer[1] * layer[2] // largest for layer in layers)


def _orientation(opened: Image.Image) -> int:
    if opened.format == "TIFF":
        return 1  # Pillow turns these when it loads them
    try:
        return int(opened.getexif().get(ExifTags.Base.Orientation, 1))
    except DAMAGE:  # metadata only: the picture itself may be whole
        return 1


def _upright(picture: Image.Image, orientation: int) -> Image.Image:
    return picture.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else picture


def _squared(picture: Image.Image, side: int, *, is_padded: bool) -> Image.Image:
    if is_padded or _is_cut_out(picture):
        return _padded(picture, side)
    short = min(picture.size)
    left, top = (picture.width - short) / 2, (picture.height - short) / 2
    return _resized_on_white(picture, (left, top, left + short, top + short), (side, side))


def _padded(picture: Image.Image, side: int) -> Image.Image:
    factor = side / max(picture.size)
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    padded = Image.new("RGB", (side, side), "white")
    corner = (round((side - size[0]) / 2), round((side - size[1]) / 2))
    padded.paste(_resized_on_white(picture, (0, 0, *picture.size), size), corner)
    return padded


def _is_cut_out(picture: Image.Image) -> bool:
    """Whether the picture shows something on nothing: cropped, it would lose parts, and white bars cannot be seen."""
    if not picture.has_transparency_data or picture.mode.startswith("I"):
        return False
    picture.load()
    corners = ((x, y, x + 1, y + 1) for x in (0, picture.width - 1) for y in (0, picture.height - 1))
    return all(picture.crop(corner).convert("RGBA").getpixel((0, 0))[3] == 0 for corner in corners)


def _resized_on_white(
    picture: Image.Image, box: tuple[float, float, float, float], size: tuple[int, int]
) -> Image.Image:
    """The box of a picture in another size, on white."""
    picture.load()
    if picture.width * picture.height <= SQUARE_AT_ONCE_PIXELS:
        return on_white(picture).resize(size, Image.Resampling.BICUBIC, box)
    left, top, right, bottom = math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])
    factor = max(1, int(min((right - left) / size[0], (bottom - top) / size[1])) // REDUCED_SIDES)
    reduced = Image.new("RGB", (-(-(right - left) // factor), -(-(bottom - top) // factor)))
    num_rows = max(1, STRIP_PIXELS // (right - left) // factor) * factor
    value_range = _value_range(picture)
    for row in range(top, bottom, num_rows):
        strip = _whitened(picture.crop((left, row, right, min(bottom, row + num_rows))), value_range)
        reduced.paste(strip.reduce(factor), (0, (row - top) // factor))
    inner = [(edge - start) / factor for edge, start in zip(box, (left, top, left, top), strict=True)]
    return reduced.resize(size, Image.Resampling.BICUBIC, tuple(inner))


def _whitened(picture: Image.Image, value_range: tuple[float, float]) -> Image.Image:
    if picture.mode.startswith(("I", "F")):
        low, high = value_range
        picture = picture if picture.mode == "F" else picture.convert("I")  # there are four kinds of 16 bits
        scale = 255 / (high - low)
        return picture.point(lambda value: value * scale + (0.5 - low * scale)).convert("L").convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def _value_range(picture: Image.Image) -> tuple[float, float]:
    """Black and white of a picture of more than 8 bits: those of the mode, or of the smallest depth that holds it."""
    if picture.mode.startswith("I;16"):
        return 0, 65535
    if picture.mode not in ("I", "F"):
        return 0, 255
    low, high = picture.getextrema()
    depths = (1, 255, 65535) if picture.mode == "F" else (255, 65535)
    whole = next((depth for depth in depths if low >= 0 and high <= depth), None)
    return (0, whole) if whole else (low, high) if high > low else (low, low + 1)
