"""What goes over the wire comes back: the averaging codecs, their error bounds, and the check for broken ones."""

import pytest
import torch
from hivemind.compression import (
    CompressionInfo,
    Float16Compression,
    NoCompression,
    deserialize_torch_tensor,
)
from swarm_of_processes import tiny_run

from pipelines.training.wire_codec import FiniteUniform8BitQuantization, averaging_compression, check_codec

# hivemind 1.1.12 with the newest numpy that it works with
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning"),
]


def sent(codec, values):
    return deserialize_torch_tensor(codec.compress(values, CompressionInfo.from_tensor(values, key=0)))


def made_up(num_elements, seed=0):
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_eight_bits_keep_gaussian_values_to_two_percent_of_their_deviation(scale, mean):
    values = scale * (made_up(2**16) + mean)
    received = sent(FiniteUniform8BitQuantization(), values)
    assert received.shape == values.shape and received.dtype == torch.float32
    assert (received - values).norm() < 0.02 * (values - values.mean()).norm()
    assert (received.mean() - values.mean()).abs() < 1e-4 * values.std(), "bucket means keep the average"


def test_values_within_the_range_are_off_by_half_a_bin_at_most():
    values = made_up(2**16)
    within = values.abs() < 2.9
    received = sent(FiniteUniform8BitQuantization(), values)
    bin_width = 6.0 * values.std() / 256
    assert (received - values)[within].abs().max() <= bin_width


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2**16,)])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-30, 1e15])
def test_zeros_and_constants_come_back_as_they_are(shape, value):
    received = sent(FiniteUniform8BitQuantization(), torch.full(shape, value))
    # A bucket's mean is a float32 sum of up to 2^16 values.
    torch.testing.assert_close(received, torch.full(shape, value), rtol=1e-3, atol=0)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_values_that_are_not_finite_are_refused(value):
    values = made_up(1000)
    values[17] = float(value)
    with pytest.raises(ValueError, match="A tensor with values that are not finite was to be averaged"):
        FiniteUniform8BitQuantization().quantize(values)


def test_the_senders_tensor_is_left_alone():
    values = made_up(1000)
    before = values.clone()
    sent(FiniteUniform8BitQuantization(), values)
    assert torch.equal(values, before)


def test_large_tensors_go_in_8_bits_and_small_ones_in_float16():
    codec = averaging_compression(tiny_run(averaging_compression="size_adaptive_8bit", min_8bit_elements=1000))
    large, small = made_up(1000), made_up(999)
    sizes = [
        len(codec.compress(values, CompressionInfo.from_tensor(values, key=0)).buffer) for values in (large, small)
    ]
    assert sizes[0] == pytest.approx(1000, abs=1100), "one byte per value and 1 kB of bucket means"
    assert sizes[1] == 2 * 999
    assert torch.equal(sent(codec, small), small.half().float())
    assert type(averaging_compression(tiny_run(averaging_compression="float16"))) is Float16Compression
    assert type(averaging_compression(tiny_run(averaging_compression="none"))) is NoCompression


@pytest.mark.parametrize("name", ["size_adaptive_8bit", "float16", "none"])
def test_every_codec_of_a_run_passes_the_check_on_this_machine(name):
    check_codec(averaging_compression(tiny_run(averaging_compression=name)))


class SendsWhatNobodyReads(NoCompression):
    """Sends a message at which the receiving side fails with a TypeError, as hivemind 1.1.12 does with numpy 2.4."""

    def compress(self, tensor, info=None, allow_inplace=False):
        message = super().compress(tensor, info, allow_inplace)
        message.dtype = "no such type"
        return message


class LosesHalf(NoCompression):
    """Returns half of every value."""

    def compress(self, tensor, info=None, allow_inplace=False):
        return super().compress(tensor / 2, info, allow_inplace)


def test_a_codec_that_fails_on_the_receiving_side_alone_is_found_before_training():
    values = made_up(10)
    message = SendsWhatNobodyReads().compress(values, CompressionInfo.from_tensor(values, key=0))
    assert message.buffer, "the sending side notices nothing"
    with pytest.raises(RuntimeError, match=r"averaging would silently lose data.* pip install 'numpy<2.4'"):
        check_codec(SendsWhatNobodyReads())


def test_a_codec_that_loses_values_is_found_before_training():
    with pytest.raises(
        RuntimeError, match=r"The wire codec returns a vector that is off by 50%; expected less than 5 %"
    ):
        check_codec(LosesHalf())
