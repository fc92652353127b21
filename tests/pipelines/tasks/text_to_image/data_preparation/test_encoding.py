"""Encoding: how pictures are cropped, what counts as corrupt, and that workers change nothing."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.tasks.text_to_image.data_preparation.device_encoding import Encoders
from pipelines.tasks.text_to_image.data_preparation.encoding import decode_picture, encode_samples
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_pool import DecodingPool
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import DecodingSettings, PictureOptions
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage


def stored(picture: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def samples(make_png, num_samples: int) -> list[CaptionImage]:
    return [
        CaptionImage(key=f"{i}", source="a.tar", caption=f" picture {i} ", image_bytes=make_png(i), similarity=i / 100)
        for i in range(num_samples)
    ]


def test_the_central_square_is_kept_and_resized():
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, 10:20], pixels[:, 20:30] = (255, 0, 0), (0, 0, 255)
    decoded, width, height = decode_picture(stored(Image.fromarray(pixels), "PNG"), 10, FilterPolicy())
    assert (width, height) == (40, 20) and decoded.shape == (10, 10, 3) and decoded.dtype == np.uint8
    # The outermost column of the square feels its neighbour outside.
    assert decoded[:, 1:4].tolist() == [[[255, 0, 0]] * 3] * 10
    assert decoded[:, 6:9].tolist() == [[[0, 0, 255]] * 3] * 10


def test_a_picture_of_the_right_size_is_not_touched():
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
    assert np.array_equal(decode_picture(stored(Image.fromarray(pixels), "PNG"), 16, FilterPolicy())[0], pixels)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_areas_become_white_and_every_mode_becomes_rgb(mode):
    picture = Image.new("RGBA", (16, 16), (255, 0, 0, 0)).convert(mode)
    content = stored(picture, "PNG", **({"transparency": 0} if mode == "P" else {}))
    decoded, _, _ = decode_picture(content, 16, FilterPolicy())
    assert decoded.shape == (16, 16, 3)
    assert mode == "P" or (decoded == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_cut_out_is_shown_whole_and_other_pictures_are_cropped(mode):
    cut_out = Image.new("RGBA", (40, 20), (0, 0, 0, 0))
    cut_out.paste((0, 0, 0, 255), (2, 5, 38, 15))
    shown, width, height = decode_picture(stored(cut_out.convert(mode), "PNG"), 40, FilterPolicy())
    assert (width, height) == (40, 20)
    assert (shown[20, 4:36] < 40).all() and (shown[:9] == 255).all() and (shown[31:] == 255).all()
    cut_out.putpixel((39, 0), (0, 0, 0, 255))
    cropped, _, _ = decode_picture(stored(cut_out.convert(mode), "PNG"), 40, FilterPolicy())
    assert (cropped[20] < 40).all(), "a corner is visible: the central square, from edge to edge"


@pytest.mark.parametrize("mode", ["L", "CMYK", "1"])
def test_grey_and_printers_pictures_are_read(mode):
    content = stored(Image.new("RGB", (20, 20), (200, 200, 200)).convert(mode), "JPEG" if mode != "1" else "PNG")
    assert decode_picture(content, 16, FilterPolicy())[0].shape == (16, 16, 3)


def test_large_jpegs_come_out_as_their_small_versions_do():
    gradient = np.linspace(0, 255, 640).astype(np.uint8)
    large = Image.fromarray(np.stack([np.tile(gradient, (640, 1))] * 3, -1))
    decoded, width, height = decode_picture(stored(large, "JPEG", quality=95), 16, FilterPolicy())
    assert (width, height) == (640, 640)
    expected = np.asarray(large.resize((16, 16), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(decoded.astype(int) - expected).max() <= 4


@pytest.mark.parametrize("damage", ["cut", "html", "empty"])
def test_broken_files_are_corrupt(make_png, damage):
    content = {"cut": make_png(0)[:300], "html": b"<html>404</html>", "empty": b""}[damage]
    assert decode_picture(content, 16, FilterPolicy()) is DropReason.CORRUPT_IMAGE


def test_a_flat_picture_is_dropped_by_its_own_size(make_png):
    assert decode_picture(make_png(0, (33, 16)), 16, FilterPolicy()) is DropReason.EXTREME_ASPECT_RATIO
    assert not isinstance(decode_picture(make_png(0, (32, 16)), 16, FilterPolicy()), DropReason)


@pytest.fixture
def encode(codec):
    """Return what encodes samples with a pool and encoders of its own."""

    def run(samples, *, num_workers=1, batch_size=None, **callbacks):
        settings = DecodingSettings(side=16, policy=FilterPolicy(), options=PictureOptions())
        with (
            DecodingPool(settings, num_workers) as pool,
            Encoders(codec, num_threads=num_workers, batch_size=batch_size) as encoders,
        ):
            return encode_samples(samples, pool, encoders, **callbacks)

    return run


def test_records_are_what_the_codec_says_in_the_order_of_the_samples(encode, codec, make_png):
    heard = []
    encoded = encode(samples(make_png, 100), num_workers=2, on_samples=heard.append)
    assert encoded.captions == tuple(f"picture {i}" for i in range(100)) and sum(heard) == 100
    images = np.stack([np.asarray(Image.open(io.BytesIO(make_png(i)))) for i in range(100)])
    expected = codec.encode(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)
    assert encoded.image_codes.dtype == np.int16 and np.array_equal(encoded.image_codes, expected.numpy())
    assert encoded.scalars["key"][3] == "a.tar/3" and encoded.scalars["width"] == (16,) * 100
    assert encoded.scalars["similarity"][7] == 0.07
    assert encoded.report.kept == 100


def test_neither_workers_nor_what_is_in_flight_change_anything(encode, make_png):
    results = [
        encode(samples(make_png, 150), num_workers=workers, batch_size=batch_size)
        for workers, batch_size in ((1, None), (3, 1), (2, 1000))
    ]
    for other in results[1:]:
        assert np.array_equal(results[0].image_codes, other.image_codes)
        assert results[0].captions == other.captions and results[0].scalars == other.scalars
    assert len(np.unique(results[0].image_codes)) > 5


def test_dropped_samples_leave_no_record_and_nothing_at_all_gives_no_records(encode, make_png):
    dirty = [
        *samples(make_png, 2),
        CaptionImage(key="bad", source="a.tar", caption="corrupt", image_bytes=b"x"),
        CaptionImage(key="none", source="a.tar", caption="missing", image_bytes=None),
    ]
    heard = []
    encoded = encode(dirty, on_drop=lambda sample, reason: heard.append((sample.key, reason.value)))
    assert encoded.image_codes.shape == (2, 16)
    assert dict(encoded.report.dropped) == {"missing_image": 1, "corrupt_image": 1}
    assert encoded.report.unreadable == ("a.tar: bad (corrupt_image)", "a.tar: none (missing_image)")
    assert heard == [("bad", "corrupt_image"), ("none", "missing_image")]
    nothing = encode([])
    assert nothing.image_codes.shape == (0, 16) and nothing.captions == ()


def test_an_error_in_a_worker_reaches_the_caller(encode, make_png):
    with pytest.raises(AttributeError):
        encode([*samples(make_png, 3), "no sample"], num_workers=2)
