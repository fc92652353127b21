"""What goes over the wire comes back: the averaging codecs, their error bounds, and the check for broken ones."""

import pytest
import torch
from hivemind.compression import CompressionInfo, Float16Compression, NoCompression
from swarm_of_processes import tiny_run

from pipelines.core.averaging.reduce.suspects import Misbehaviour, PartRefusedError
from pipelines.core.averaging.wire.codec import (
    BLOCK_SIZE,
    Blockwise8BitCodec,
    averaging_compression,
    check_codec,
    read_part,
)


def written(codec, values):
    info = CompressionInfo.from_tensor(values, key=0)
    return codec.compress(values, info), info


def sent(codec, values):
    message, info = written(codec, values)
    return read_part(message, codec, info, values.shape)


def made_up(num_elements, seed=0):
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["gaussian", "heavy-tailed", "sparse"])
def test_blocks_of_their_own_scale_keep_every_distribution_to_two_percent(kind):
    values = made_up(2**18)
    if kind == "heavy-tailed":
        values = values / made_up(2**18, seed=1).abs().clamp(min=1e-3)
    if kind == "sparse":
        values = values * (torch.arange(2**18) % 100 == 0)

    assert (sent(Blockwise8BitCodec(), values) - values).norm() < 0.02 * values.norm()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e6])
def test_the_error_does_not_depend_on_the_scale(scale):
    values = made_up(2**16)
    received = sent(Blockwise8BitCodec(), scale * values)
    assert received.dtype == torch.float32 and (received / scale - values).norm() < 0.02 * values.norm()
    assert (received.mean() / scale - values.mean()).abs() < 2e-4


def test_one_byte_a_value_and_four_for_each_block():
    message, _ = written(Blockwise8BitCodec(), made_up(3 * BLOCK_SIZE + 1))
    assert len(message.buffer) == 3 * BLOCK_SIZE + 1 + 4 * 4


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2**16,)])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-30, 1e15])
def test_zeros_and_constants_come_back_as_they_are(shape, value):
    received = sent(Blockwise8BitCodec(), torch.full(shape, value))
    # The most negative level is -0.993.
    torch.testing.assert_close(received, torch.full(shape, value), rtol=8e-3 if value < 0 else 1e-3, atol=0)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_values_that_are_not_finite_are_refused(value):
    values = made_up(1000)
    values[17] = float(value)
    with pytest.raises(ValueError, match="A tensor to be averaged has non-finite values"):
        written(Blockwise8BitCodec(), values)


def change_buffer(message, offset, replacement):
    message.buffer = message.buffer[:offset] + replacement + message.buffer[offset + len(replacement) :]


def resize(message, *size):
    message.size[:] = size


IMPOSSIBLE_PARTS = {
    "another shape": (lambda m: resize(m, 8193), Misbehaviour.WRONG_SHAPE),
    "a huge shape": (lambda m: resize(m, 2**30, 2**30), Misbehaviour.WRONG_SHAPE),
    "a byte too few": (lambda m: setattr(m, "buffer", m.buffer[:-1]), Misbehaviour.UNREADABLE),
    "nothing": (lambda m: setattr(m, "buffer", b""), Misbehaviour.UNREADABLE),
    "another codec": (lambda m: setattr(m, "compression", 3), Misbehaviour.UNREADABLE),
    "another type": (lambda m: setattr(m, "dtype", "float64"), Misbehaviour.UNREADABLE),
    "a scale of nan": (
        lambda m: change_buffer(m, 0, torch.tensor(float("nan")).numpy().tobytes()),
        Misbehaviour.NOT_FINITE,
    ),
    "a negative scale": (lambda m: change_buffer(m, 4, torch.tensor(-1.0).numpy().tobytes()), Misbehaviour.NOT_FINITE),
}


@pytest.mark.parametrize("name", IMPOSSIBLE_PARTS)
def test_a_part_that_no_honest_peer_sends_is_refused_and_the_offence_named(name):
    tamper, offence = IMPOSSIBLE_PARTS[name]
    codec, values = Blockwise8BitCodec(), made_up(2 * BLOCK_SIZE)
    message, info = written(codec, values)
    tamper(message)
    with pytest.raises(PartRefusedError, match="A peer sent") as refused:
        read_part(message, codec, info, values.shape)
    assert refused.value.offence == offence


def test_the_senders_tensor_is_left_alone():
    values = made_up(1000)
    before = values.clone()
    sent(Blockwise8BitCodec(), values)
    assert torch.equal(values, before)


def test_large_tensors_go_in_8_bits_and_small_ones_in_float16():
    codec = averaging_compression(tiny_run(averaging_compression="blockwise_8bit", min_8bit_elements=1000))
    large, small = made_up(1000), made_up(999)
    assert [len(written(codec, values)[0].buffer) for values in (large, small)] == [1004, 2 * 999]
    assert torch.equal(sent(codec, small), small.half().float())
    assert type(averaging_compression(tiny_run(averaging_compression="float16"))) is Float16Compression
    assert type(averaging_compression(tiny_run(averaging_compression="none"))) is NoCompression


@pytest.mark.parametrize("name", ["blockwise_8bit", "float16", "none"])
def test_every_codec_of_a_run_passes_the_check_on_this_machine(name):
    check_codec(averaging_compression(tiny_run(averaging_compression=name)))


class SendsWhatNobodyReads(NoCompression):
    """Sends a message that the receiving side cannot read."""

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
    with pytest.raises(RuntimeError, match=r"no such type.*averaging would silently lose data.* pip install -U"):
        check_codec(SendsWhatNobodyReads())


def test_a_codec_that_loses_values_is_found_before_training():
    with pytest.raises(
        RuntimeError, match=r"The wire codec returns a vector that is off by 50%; expected less than 5 %"
    ):
        check_codec(LosesHalf())
