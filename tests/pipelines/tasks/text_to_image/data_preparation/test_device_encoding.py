"""The codec on devices: one size of sub-batch, any number in flight, several devices, reduced precision."""

import numpy as np
import pytest
import torch

from pipelines.tasks.text_to_image.data_preparation.device_encoding import (
    Encoders,
    _places_on,
    encode_pixels,
    picture_bytes,
    sub_batch_size,
)
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANConfig


def pictures(number: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (number, 16, 16, 3), np.uint8))


def batched(items: list, size: int) -> list[list]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def test_the_size_of_a_sub_batch_depends_on_the_configuration_alone():
    published = VQGANConfig()
    assert picture_bytes(published) == pytest.approx(163e6, rel=0.05)
    assert sub_batch_size(published) == 4
    assert sub_batch_size(VQGANConfig(image_size=1024, attention_resolutions=())) == 1


def test_a_padded_sub_batch_gives_the_codes_of_a_full_one(codec):
    few, many = pictures(64)[:5], pictures(64)
    alone = encode_pixels(codec, few, 64)
    assert alone.shape == (5, 16) and alone.dtype == np.int16
    assert np.array_equal(alone, encode_pixels(codec, many, 64)[:5])


@pytest.mark.parametrize("devices", [(), ("cpu",), ("cpu", "cpu")])
@pytest.mark.parametrize(("num_threads", "batch_size"), [(1, None), (3, None), (2, 1), (2, 1000)])
def test_devices_threads_and_batches_change_no_code(codec, devices, num_threads, batch_size):
    many = pictures(300)
    with Encoders(codec, devices=devices, num_threads=num_threads, batch_size=batch_size) as encoders:
        assert encoders.sub_batch_size == 64
        codes = np.concatenate(list(encoders.encoded(batched(many, 64))))
    assert np.array_equal(codes, np.concatenate([encode_pixels(codec, part, 64) for part in batched(many, 64)]))


@pytest.mark.parametrize(("batch_size", "places"), [(1, 1), (63, 1), (128, 2), (10_000, 8)])
def test_a_batch_size_bounds_what_is_in_flight(codec, batch_size, places):
    assert _places_on("cpu", 64, codec.config, 8, batch_size) == places


def test_memory_bounds_what_is_in_flight():
    assert _places_on("cpu", 4, VQGANConfig(), 10_000, None) < 10_000
    assert _places_on("cpu", 10**6, VQGANConfig(), 8, None) == 1


def test_bfloat16_changes_codes_and_says_so_in_nothing_but_them(codec):
    many = pictures(64)
    with Encoders(codec, precision="bfloat16") as encoders:
        (codes,) = encoders.encoded([many])
    exact = encode_pixels(codec, many, 64)
    assert codes.shape == exact.shape and 0 < (codes != exact).mean() < 0.6


def test_wrong_precisions_are_refused(codec):
    with pytest.raises(ValueError, match="precision is 'int8'; expected one of float32, tf32, bfloat16"):
        Encoders(codec, precision="int8")
    with pytest.raises(ValueError, match="Only GPUs know tf32; the codec is on cpu"):
        Encoders(codec, precision="tf32")


def test_convolutions_on_gpus_are_exact_while_encoding_and_as_before_afterwards(codec):
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic
    with Encoders(codec):
        assert torch.backends.cudnn.conv.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cudnn.deterministic
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic) == before


def test_an_error_of_the_codec_reaches_the_caller(codec):
    with Encoders(codec) as encoders, pytest.raises(ValueError):
        list(encoders.encoded([[np.zeros((3, 3, 3), np.uint8)]]))
