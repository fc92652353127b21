"""Decoding: upright, of every depth and mode, of every format by its content, within a bounded memory."""

import gzip
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.pictures import decoding
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import UPRIGHT, square_picture, thumbnail
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import PictureOptions

CORNERS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 0]]], np.uint8)
SEED = 7


def four_colours(width: int = 32, height: int = 32) -> Image.Image:
    return Image.fromarray(CORNERS).resize((width, height), Image.Resampling.NEAREST)


def quadrants(pixels: np.ndarray) -> np.ndarray:
    """The colours in the middle of the four quadrants, (2, 2, 3), rounded to 0 or 255."""
    quarter = len(pixels) // 4
    places = [quarter, len(pixels) - quarter - 1]
    return np.where(pixels[np.ix_(places, places)] > 127, 255, 0).astype(np.uint8)


def noise(width: int, height: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_upright_as_its_exif_says(stored, square, kind, orientation):
    inverse = {6: 8, 8: 6}.get(orientation, orientation)
    lying = four_colours().transpose(UPRIGHT[inverse]) if orientation > 1 else four_colours()
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(quadrants(square(stored(lying, kind, exif=exif))), CORNERS)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_the_size_is_that_of_the_upright_picture(stored, kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = stored(four_colours(30, 20), kind, exif=exif)
    squared = square_picture(content, 16, FilterPolicy(), PictureOptions())
    assert (squared.width, squared.height) == (20, 30)


@pytest.mark.parametrize(
    "damage",
    [b"", b"MM\0*\xff\xff\xff\xff", bytes(40), b"II*\0\x08\0\0\0\xff\xff" + b"\x12\x01" * 90],
    ids=["empty", "outside", "zeros", "entries"],
)
def test_damaged_exif_costs_no_picture(stored, square, damage):
    content = stored(four_colours(), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(damage) + 8) + b"Exif\0\0" + damage
    assert np.array_equal(quadrants(square(content[:2] + segment + content[2:])), CORNERS)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(stored, square, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(quadrants(square(stored(four_colours(), "JPEG", exif=exif))), CORNERS)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_greys(stored, square, kind):
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    grey = square(stored(Image.fromarray(values), kind))
    assert np.abs(grey[..., 0].astype(int) - values / 257).max() <= 0.5
    assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 0] == grey[..., 2]).all()


def test_sixteen_bit_grey_that_names_a_transparent_value_is_read(stored, square):
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    content = stored(Image.fromarray(values), "PNG")
    body = b"tRNS" + struct.pack(">H", 0)
    chunk = struct.pack(">I", 2) + body + struct.pack(">I", zlib.crc32(body))
    at = content.index(b"IDAT") - 4
    grey = square(content[:at] + chunk + content[at:])
    assert np.abs(grey[..., 0].astype(int) - values / 257).max() <= 0.5


def test_big_endian_and_large_sixteen_bit_greys_are_the_same(stored, square, monkeypatch):
    values = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    big = Image.frombytes("I;16B", (64, 64), values.astype(">u2").tobytes())
    expected = square(stored(Image.fromarray(values), "TIFF"))
    assert np.array_equal(square(stored(big, "TIFF")), expected)
    monkeypatch.setattr(decoding, "SQUARE_AT_ONCE_PIXELS", 100)
    assert np.abs(square(stored(big, "TIFF")).astype(int) - expected).max() <= 2


@pytest.mark.parametrize(
    ("largest", "mode"), [(1, "F"), (255, "F"), (65535, "F"), (3.5, "F"), (255, "I"), (65535, "I")]
)
def test_numbers_without_a_depth_span_the_smallest_that_holds_them(stored, square, largest, mode):
    values = np.linspace(0, largest, 256).reshape(16, 16)
    picture = Image.fromarray(values.astype(np.float32 if mode == "F" else np.int32))
    span = 255 if largest == 3.5 else largest  # a picture of small floats beyond 1 is one of 8 bits, nearly black
    expected = values * 255 / span
    assert np.abs(square(stored(picture, "TIFF"))[..., 0] - expected).max() <= 1


@pytest.mark.parametrize(
    "values", [[np.nan, 1, 2, 3], [np.inf, 0, 1, 2], [-np.inf, 0, 1, np.inf], [-5, -4, -3, -2], [7, 7, 7, 7]]
)
def test_floats_of_any_kind_give_a_picture(stored, square, values):
    picture = Image.fromarray(np.array(values, np.float32).reshape(2, 2))
    assert square(stored(picture, "TIFF")).shape == (16, 16, 3)


def half_transparent(mode: str) -> tuple[Image.Image, dict]:
    """A blue picture whose left half is transparent, and how to store it as a PNG."""
    is_left = np.arange(16)[None, :] < 8
    if mode == "P":
        indices = Image.fromarray(np.repeat(np.where(is_left, 0, 1).astype(np.uint8), 16, 0))
        indices.putpalette([255, 0, 0, 0, 0, 255])
        return indices, {"transparency": 0}
    if mode == "RGB":
        pixels = np.where(is_left[..., None], [1, 2, 3], [0, 0, 255]).astype(np.uint8).repeat(16, 0)
        return Image.fromarray(pixels), {"transparency": (1, 2, 3)}
    picture = Image.new("RGBA", (16, 16), (0, 0, 255, 255))
    picture.paste((255, 0, 0, 0), (0, 0, 8, 16))
    return picture.convert(mode), {}


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_transparent_areas_become_white(stored, square, mode):
    picture, options = half_transparent(mode)
    seen = square(stored(picture, "PNG", **options))
    assert (seen[:, :8] == 255).all() and (seen[:, 8:, 0] < 40).all()


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("YCbCr", "JPEG"), ("LAB", "TIFF"), ("1", "PNG")]
)
def test_every_mode_is_read(stored, square, mode, kind):
    picture = Image.new("RGB", (20, 20), (200, 200, 200))
    if mode == "LAB":
        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        picture = ImageCms.profileToProfile(picture, *profiles, outputMode="LAB")
    elif mode == "1":
        picture = Image.new("1", (20, 20), 1)
    seen = square(stored(picture.convert(mode), kind))
    assert np.abs(seen.astype(int) - (255 if mode == "1" else 200)).max() <= 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_the_format_is_judged_by_the_content(stored, square, kind):
    assert np.array_equal(quadrants(square(stored(four_colours(), kind))), CORNERS)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF", "TIFF", "MPO"])
def test_the_first_frame_of_an_animation_counts(stored, square, kind):
    others = [Image.new("RGB", (32, 32), "black")] * 3
    content = stored(four_colours(), kind, save_all=True, append_images=others)
    assert np.array_equal(quadrants(square(content)), CORNERS)


@pytest.mark.parametrize(
    "beginning",
    [
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        b"\0\0\0\x18ftypmif1\0\0\0\0",
        b"\xff\x0a" + bytes(30),
        b"\0\0\0\x0cJXL \r\n\x87\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\xef\xbb\xbf<?xml version='1.0'?><svg/>",
        b" \r\n<svg/>",
        gzip.compress(b"<svg/>", mtime=0),
        b"8BPS\0\1" + bytes(40),
        b"%PDF-1.7",
        b"\0\0\1\0\1\0",
        b"\0\0\0\x0cjP  \r\n\x87\n",
    ],
)
def test_a_format_that_is_not_read_has_its_own_reason(square, beginning):
    assert square(beginning) is DropReason.UNSUPPORTED_FORMAT


@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8X", bytes(1000)]
)
def test_what_is_no_picture_is_corrupt(square, content):
    assert square(content) is DropReason.CORRUPT_IMAGE


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_a_cut_picture_is_corrupt(stored, square, kind):
    content = stored(Image.fromarray(noise(64, 64)), kind)
    assert square(content[: len(content) * 2 // 3]) is DropReason.CORRUPT_IMAGE


def test_crop_keeps_the_centre_and_pad_keeps_all(stored, square):
    wide = Image.new("RGB", (64, 32), "black")
    wide.paste("red", (0, 0, 16, 32))
    content = stored(wide, "PNG")
    assert (square(content) < 100).all()
    padded = square(content, fit="pad")
    assert (padded[:3] == 255).all() and (padded[-3:] == 255).all()
    assert (padded[8, :3, 0] > 200).all() and (padded[8, 6:] < 40).all()


@pytest.mark.parametrize(("width", "height"), [(600, 400), (400, 600), (601, 399)])
@pytest.mark.parametrize("fit", ["crop", "pad"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK"])
def test_a_large_picture_looks_like_one_that_is_resized_at_once(stored, square, monkeypatch, width, height, fit, mode):
    smooth = Image.fromarray(noise(6, 6)).resize((width, height), Image.Resampling.BICUBIC)
    picture = smooth.quantize(250) if mode == "P" else smooth.convert(mode)
    content = stored(picture, "TIFF")
    at_once = square(content, fit=fit).astype(int)
    monkeypatch.setattr(decoding, "SQUARE_AT_ONCE_PIXELS", 1000)
    monkeypatch.setattr(decoding, "STRIP_PIXELS", 5000)
    difference = np.abs(square(content, fit=fit).astype(int) - at_once)
    assert difference.mean() < 1.5 and difference.max() <= 24


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (1, 1), (2, 60000)])
@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_thin_pictures_are_squares_too_where_the_filter_lets_them_pass(stored, square, monkeypatch, size, fit):
    monkeypatch.setattr(decoding, "SQUARE_AT_ONCE_PIXELS", 10)
    assert square(stored(Image.new("RGB", size, "red"), "PNG"), fit=fit, max_aspect_ratio=1e6).shape == (16, 16, 3)


@pytest.mark.parametrize("is_interlaced", [False, True])
def test_a_png_beyond_the_memory_limit_is_not_decoded(square, zeros_png, is_interlaced):
    content = zeros_png(13_000, 13_000, is_interlaced=is_interlaced)
    assert square(content) is DropReason.TOO_MANY_PIXELS


def with_larger_header(content: bytes, kind: str, side: int) -> bytes:
    """The file with a header that announces side x side pixels."""
    forged = bytearray(content)
    if kind == "WEBP":
        forged[24:30] = (side - 1).to_bytes(3, "little") * 2
    elif kind == "JPEG":
        at = content.index(b"\xff\xc2") + 5  # SOF2: length, precision, height, width
        forged[at : at + 4] = side.to_bytes(2) * 2
    elif kind == "TIFF":
        for tag in (256, 257):
            at = content.index(struct.pack("<HHI", tag, 4, 1)) + 8
            forged[at : at + 4] = struct.pack("<I", side)
    else:
        forged[18:26] = struct.pack("<II", side, side)
    return bytes(forged)


@pytest.mark.parametrize("kind", ["WEBP", "JPEG", "TIFF", "BMP"])
def test_a_file_that_announces_a_large_picture_is_not_decoded(stored, square, kind):
    options = {"JPEG": {"progressive": True}, "WEBP": {"exif": b"Exif\0\0 some"}}.get(kind, {})
    content = stored(four_colours(), kind, **options)
    assert square(with_larger_header(content, kind, 32)).shape == (16, 16, 3)
    assert square(with_larger_header(content, kind, 13_000)) is DropReason.TOO_MANY_PIXELS


@pytest.mark.parametrize("compression", ["group4", "tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_a_tiff_that_unpacks_to_a_thousand_times_its_size_is_not_decoded(stored, square, compression):
    content = stored(Image.new("1", (6000, 6000)), "TIFF", compression=compression)
    assert len(content) < 6000 * 6000 / 100
    assert square(content, memory_mib=100) is DropReason.TOO_MANY_PIXELS
    assert square(content).shape == (16, 16, 3)


def test_pixels_count_by_what_a_format_takes(stored, square):
    grey = stored(Image.new("L", (1000, 1000)), "PNG")
    colours = stored(Image.new("RGB", (1000, 1000)), "PNG")
    webp = stored(Image.new("RGB", (1000, 1000)), "WEBP")
    assert square(grey, memory_mib=1).shape == (16, 16, 3)
    assert square(colours, memory_mib=1) is DropReason.TOO_MANY_PIXELS
    assert square(colours, memory_mib=4).shape == (16, 16, 3)
    assert square(webp, memory_mib=4) is DropReason.TOO_MANY_PIXELS
    assert square(webp, memory_mib=16).shape == (16, 16, 3)


@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": b"Exif\0\0 some"}])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_canvas_of_a_webp_is_known_before_its_decoder_takes_memory(stored, mode, options):
    content = stored(Image.new(mode, (217, 91), (1, 2, 3)), "WEBP", **options)
    assert decoding.num_pixels_of_webp(content) == 217 * 91
    assert decoding.num_pixels_of_webp(content[:29]) == 0


def test_a_baseline_jpeg_may_be_larger_than_others_and_a_progressive_one_not(stored, square):
    large = Image.new("RGB", (4000, 4000), (10, 200, 30))
    assert np.abs(square(stored(large, "JPEG"), memory_mib=1)[8, 8].astype(int) - (10, 200, 30)).max() < 8
    assert square(stored(large, "JPEG", progressive=True), memory_mib=40) is DropReason.TOO_MANY_PIXELS
    assert square(stored(large, "JPEG", progressive=True), memory_mib=60).shape == (16, 16, 3)


def test_a_jpeg_that_announces_more_pixels_than_it_has_bits_is_corrupt_and_not_grey(stored, square):
    content = stored(four_colours(), "JPEG")
    at = content.index(b"\xff\xc0") + 5
    forged = content[:at] + (8000).to_bytes(2) * 2 + content[at + 4 :]
    assert square(forged) is DropReason.CORRUPT_IMAGE
    flat = stored(Image.new("L", (8000, 8000)), "JPEG", optimize=True)
    assert square(flat).shape == (16, 16, 3)
    flat = stored(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True, optimize=True)
    assert square(flat).shape == (16, 16, 3)


def png_chunk(name: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4) + name + body + zlib.crc32(name + body).to_bytes(4)


@pytest.mark.parametrize(
    ("name", "beginning", "is_read"), [(b"zTXt", b"a\0\0", False), (b"iCCP", b"a\0\0", False), (b"IDAT", b"", True)]
)
def test_compressed_chunks_that_unpack_to_much_more_cost_no_memory(stored, square, name, beginning, is_read):
    content, bomb = stored(four_colours(), "PNG"), zlib.compress(bytes(200 * 2**20))
    at = content.index(b"IDAT") - 4 if not is_read else content.index(b"IEND") - 4
    tracemalloc.start()
    seen = square(content[:at] + png_chunk(name, beginning + bomb) + content[at:])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 * 2**20 and isinstance(seen, DropReason) == (not is_read)


def test_exif_behind_the_pixels_and_orientation_in_xmp_count_too(stored, square):
    exif = Image.Exif()
    exif[0x0112] = 3
    content = stored(four_colours().rotate(180), "PNG")
    at = content.index(b"IEND") - 4
    content = content[:at] + png_chunk(b"eXIf", exif.tobytes()[6:]) + content[at:]
    assert np.array_equal(quadrants(square(content)), CORNERS)
    xmp = b'<rdf:Description tiff:Orientation="3"/>'
    assert np.array_equal(quadrants(square(stored(four_colours().rotate(180), "JPEG", xmp=xmp))), CORNERS)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_of_few_bits_with_a_transparent_value(square, bits):
    rows = b"".join(b"\0" + bytes(16 * bits // 16) + b"\xff" * (16 * bits // 16) for _ in range(16))
    header = (16).to_bytes(4) * 2 + bytes([bits, 0, 0, 0, 0])
    chunks = [(b"IHDR", header), (b"tRNS", b"\0\0"), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    seen = square(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks))
    assert (seen == 255).all(), "black is transparent, and thus white like the rest"


def test_a_gif_whose_first_frame_is_larger_than_its_screen_is_judged_by_the_frame(stored, square):
    content = bytearray(stored(Image.new("P", (3000, 3000)), "GIF"))
    content[6:10] = struct.pack("<HH", 5, 5)
    assert square(bytes(content), memory_mib=4) is DropReason.TOO_MANY_PIXELS


def test_flat_pictures_are_dropped_before_they_are_decoded(zeros_png, square):
    assert square(zeros_png(33, 16), max_aspect_ratio=2.0) is DropReason.EXTREME_ASPECT_RATIO
    assert square(zeros_png(16, 33), max_aspect_ratio=2.0) is DropReason.EXTREME_ASPECT_RATIO


def test_a_thumbnail_is_small_upright_and_whole_and_shows_what_is_left_of_a_cut_picture(stored):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = stored(four_colours(2000, 1000), "JPEG", exif=exif)
    with Image.open(io.BytesIO(thumbnail(content, PictureOptions()))) as small:
        assert small.size == (128, 128) and small.getpixel((2, 64)) > (240, 240, 240)
    noisy = stored(Image.fromarray(noise(300, 300)), "JPEG")
    assert thumbnail(noisy[: len(noisy) // 2], PictureOptions()) is not None
    assert thumbnail(b"<html>", PictureOptions()) is None
    assert thumbnail(stored(four_colours(2000, 2000), "PNG"), PictureOptions(memory_mib=1)) is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_flipped_bytes_give_a_picture_or_a_reason(stored, square, kind):
    content = stored(Image.fromarray(noise(40, 30)), kind)
    random = np.random.default_rng(SEED)
    for _ in range(200):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), random.integers(1, 9)):
            damaged[place] = random.integers(0, 256)
        seen = square(bytes(damaged), memory_mib=16)
        assert isinstance(seen, DropReason) or seen.shape == (16, 16, 3)


@pytest.mark.parametrize(
    ("setting", "message"), [({"fit": "stretch"}, "fit is 'stretch'"), ({"memory_mib": 0}, "memory_mib is 0")]
)
def test_wrong_options_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        PictureOptions(**setting)
