"""What visitors upload is read within bounds, however many send it at once."""

import struct
import threading
import zlib

import pytest
from PIL import Image

from pipelines.tasks.text_to_image.generation.uploaded_picture import (
    LONGEST_SIDE,
    MAX_PIXELS,
    MAX_PIXELS_AT_ONCE,
    ONE_AT_A_TIME,
    read_picture,
)

ORIENTATION, TURNED_RIGHT = 0x0112, 6


def test_pictures_that_expand_are_read_one_after_the_other(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "small.png")
    read = []
    reader = threading.Thread(target=lambda: read.append(read_picture(tmp_path / "small.png")))
    with ONE_AT_A_TIME:
        reader.start()
        reader.join(0.3)
        assert not read
    reader.join()
    assert read[0].size == (8, 8)


def with_size(path, width, height):
    """Say in the header of a small picture that it is large."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".png":
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    else:
        frame = content.index(b"\xff\xc0")
        content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "most"), [("bomb.png", MAX_PIXELS_AT_ONCE), ("bomb.jpg", MAX_PIXELS)])
def test_what_is_too_large_is_refused_before_it_is_unpacked(tmp_path, name, most):
    Image.new("L", (8, 8)).save(tmp_path / name)
    height = most // 10_000 + 1
    with_size(tmp_path / name, 10_000, height)
    expected = f"{name} has 10000 x {height} pixels, expected at most {most // 10**6} million"
    with pytest.raises(ValueError, match=expected):
        read_picture(tmp_path / name)


@pytest.mark.parametrize("name", ["large.jpg", "large.png"])
def test_a_large_picture_is_made_smaller_and_stands_upright(tmp_path, name):
    large, turned = Image.new("RGB", (2 * LONGEST_SIDE, LONGEST_SIDE // 2), "red"), Image.Exif()
    large.paste("blue", (LONGEST_SIDE, 0, *large.size))
    turned[ORIENTATION] = TURNED_RIGHT
    large.save(tmp_path / name, exif=turned)
    picture = read_picture(tmp_path / name)
    assert picture.size == (LONGEST_SIDE // 4, LONGEST_SIDE)
    (red, *_), (*_, blue) = picture.getpixel((9, 9)), picture.getpixel((9, LONGEST_SIDE - 9))
    assert min(red, blue) > 250


@pytest.mark.parametrize("mode", ["P", "RGBA", "L", "RGB"])
def test_a_small_picture_keeps_each_of_its_pixels(tmp_path, mode):
    small = Image.effect_noise((60, 40), 90).convert(mode)
    small.save(tmp_path / "small.png")
    assert read_picture(tmp_path / "small.png").tobytes() == small.convert("RGB").tobytes()
