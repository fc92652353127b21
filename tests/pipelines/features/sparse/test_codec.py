"""Sparse progress as bytes: exact, close to the information bound, and read by who believes nothing."""

import itertools
import math
import random
import struct
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from sparse_progress import CHUNK, SHAPES, K, decoded, made_up

from pipelines.features.sparse.codec import LEVELS_START, MARK, MOST_SAMPLES, SparseCodec

SETTINGS = [(256, 16), (256, 1), (64, 64), (64, 40), (1000, 32), (4096, 64), (1, 1), (2**16, 500)]
MUTATIONS = 1500


def encoded_again(codec, update):
    """Return the bytes of an update, written here from the format's description, bit by bit."""
    levels = b"".join(struct.pack("<ff", *pair) for pair in update.levels.tolist())
    bits = "".join(f"{code:02b}" for code in update.codes)
    gaps, rest = [], np.asarray(update.indices)  # with whose they are
    for shape in codec.layout.shapes:
        for values in chunks_of(torch.empty(shape), codec.layout.chunk):
            own, rest = np.split(rest, [num_sent(codec, shape, len(values))])
            gaps += [
                (int(index - before - 1), is_vector(shape)) for before, index in itertools.pairwise([-1, *own.tolist()])
            ]
    assert not len(rest)
    for of_vector, width in enumerate(codec.rice_bits):
        bits += "".join(f"{gap % 2**width:0{width}b}" for gap, own in gaps if own == of_vector and width)
    bits += "".join("0" * (gap >> codec.rice_bits[own]) + "1" for gap, own in gaps)
    bits += "0" * (-len(bits) % 8)
    samples = struct.pack("<Q", update.num_samples)
    return MARK + samples + levels + bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8))


def chunks_of(tensor, chunk):
    return tensor.reshape(-1).split(chunk)


def is_vector(shape):
    return sum(size > 1 for size in shape) < 2


def num_sent(codec, shape, size):
    """Return how many values a chunk of this size sends: vectors send 16 times the share."""
    k = min(codec.layout.chunk, 16 * codec.layout.k) if is_vector(shape) else codec.layout.k
    return math.ceil(Fraction(k * size, codec.layout.chunk))


@pytest.mark.parametrize(("chunk", "k"), SETTINGS)
def test_of_every_chunk_the_largest_values_arrive_with_their_signs_and_two_magnitudes(chunk, k):
    tensors = made_up(1)
    codec = SparseCodec(SHAPES, chunk, k)
    for sent, tensor in zip(decoded(codec, codec.encode(tensors, 1)), tensors, strict=True):
        assert len(sent[sent != 0].abs().unique()) <= 2
        for own, values in zip(chunks_of(sent, chunk), chunks_of(tensor, chunk), strict=True):
            largest = values.abs().topk(num_sent(codec, tensor.shape, len(values))).indices
            assert own.nonzero().flatten().tolist() == sorted(largest.tolist())
            assert torch.equal(own.sign()[largest], values.sign()[largest])


def test_levels_are_the_means_of_the_division_with_the_least_squared_error():
    tensors = made_up(2)
    codec = SparseCodec(SHAPES, CHUNK, K)
    for sent, tensor in zip(decoded(codec, codec.encode(tensors, 1)), tensors, strict=True):
        magnitudes = tensor[sent != 0].abs().sort().values.double()
        parts = [(magnitudes[:size], magnitudes[size:]) for size in range(1, len(magnitudes))] or [(magnitudes,)]
        least = min(sum(((part - part.mean()) ** 2).sum().item() for part in own) for own in parts)
        error = ((tensor - sent)[sent != 0].double() ** 2).sum().item()
        assert error == pytest.approx(least, rel=1e-5, abs=1e-15)


@pytest.mark.parametrize(("chunk", "k"), SETTINGS)
def test_the_bytes_are_those_of_the_format(chunk, k):
    codec = SparseCodec(SHAPES, chunk, k)
    payload = codec.encode(made_up(3), 9)
    assert encoded_again(codec, codec.decode(payload)) == payload
    assert codec.decode(payload).num_samples == 9
    assert codec.least_bytes <= len(payload) <= codec.most_bytes


@pytest.mark.parametrize("k", [32, 64])
def test_bytes_are_within_5_per_cent_of_the_information_bound(k):
    shapes = ((512, 256), (256, 1024), (1024,), (256,))
    codec = SparseCodec(shapes, 4096, k)
    of_chunks = [(4096, k)] * (32 + 64) + [(1024, 4 * k), (256, k)]  # both vectors send 16 times the share
    bits = sum(math.log2(math.comb(size, count)) + 2 * count for size, count in of_chunks)
    heavy_tailed = [tensor**3 for tensor in made_up(4, shapes, 1.0)]
    for tensors in (made_up(5, shapes), heavy_tailed):
        assert bits / 8 <= len(codec.encode(tensors, 1)) <= 1.05 * bits / 8


def test_zeros_equal_values_and_single_large_ones_go_through():
    codec = SparseCodec(((8, 32),), 64, 8)
    zeros, ones, single = torch.zeros(8, 32), -torch.ones(8, 32), torch.zeros(8, 32)
    single[3, 5] = -2.0
    for tensor, expected in ((zeros, 0), (ones, -32), (single, -2)):
        (sent,) = decoded(codec, codec.encode([tensor], 1))
        assert sent.sum() == expected
    assert torch.equal(sent, single)
    (tiny,) = decoded(codec, codec.encode([torch.full((8, 32), 1e-44)], 1))
    assert tiny.max() == torch.tensor(1e-44)


def test_values_that_are_not_finite_other_shapes_and_no_samples_are_refused():
    codec = SparseCodec(SHAPES, CHUNK, K)
    for broken in (math.nan, math.inf, -math.inf, 1e38):
        tensors = made_up(6)
        tensors[2][1, 1] = broken
        with pytest.raises(ValueError, match=r"not finite or above 4.29e\+09; nothing is sent"):
            codec.encode(tensors, 1)
    with pytest.raises(ValueError, match=r"expected float32 of shapes"):
        codec.encode(made_up(6)[:-1], 9)
    for num_samples in (0, -1, 2**63):
        with pytest.raises(ValueError, match=f"is of {num_samples} samples; expected 1 to"):
            codec.encode(made_up(6), num_samples)
    with pytest.raises(ValueError, match=r"expected float32 of shapes"):
        codec.encode([tensor.double() for tensor in made_up(6)], 1)


@pytest.mark.parametrize(("chunk", "k"), [(64, 0), (64, 65), (2**16 + 1, 4)])
def test_settings_out_of_range_are_refused(chunk, k):
    with pytest.raises(ValueError, match=f"k is {k} and chunk {chunk}; expected 1 <= k <= chunk <= 65536"):
        SparseCodec(SHAPES, chunk, k)


@pytest.mark.parametrize("shapes", [(), ((3, 0),)])
def test_shapes_without_values_are_refused(shapes):
    with pytest.raises(ValueError, match="no tensor without values"):
        SparseCodec(shapes)


def with_bits(codec, payload, change):
    """Return the payload with its bits, a list of 0 and 1, changed in place."""
    head = LEVELS_START + 8 * len(codec.layout.shapes)
    bits = np.unpackbits(np.frombuffer(payload[head:], np.uint8)).tolist()
    change(bits)
    return payload[:head] + np.packbits(bits).tobytes()


def with_levels(payload, low, high):
    return payload[:LEVELS_START] + struct.pack("<ff", low, high) + payload[LEVELS_START + 8 :]


def with_samples(payload, number):
    return payload[: len(MARK)] + struct.pack("<Q", number) + payload[LEVELS_START:]


def test_each_kind_of_damage_is_named():
    codec = SparseCodec(((8, 8),), 64, 8)
    payload = codec.encode(made_up(7, ((8, 8),)), 9)
    (width, _) = codec.rice_bits
    low, high = struct.unpack_from("<ff", payload, LEVELS_START)
    first = 8 * 2 + 8 * width  # of the quotients
    cases = {
        "has 9 bytes; expected": payload[:9],
        "begins with b'SPG\\\\x01'": b"SPG\x01" + payload[4:],
        "is of 0 samples; expected 1 to": with_samples(payload, 0),
        f"is of {MOST_SAMPLES + 1} samples": with_samples(payload, MOST_SAMPLES + 1),
        f"is of {2**63} samples": with_samples(payload, 2**63),
        f"is of {2**64 - 1} samples": with_samples(payload, 2**64 - 1),
        "levels nan": with_levels(payload, math.nan, high),
        "levels .* and inf": with_levels(payload, low, math.inf),
        "levels .* expected 0 <= low": with_levels(payload, high, low),
        "levels -0.0": with_levels(payload, -0.0, high),
        "do not fit its levels": with_levels(payload, high, high),
        "no sign of 0": with_levels(payload, 0.0, high),
        "has 9 indices; expected 8": with_bits(
            codec, payload, lambda bits: bits.__setitem__(slice(first, None), [1] * 9)
        ),
        "goes on after its last index": with_bits(
            codec, payload, lambda bits: bits.__setitem__(slice(first, None), [1] * 8 + [0] * 8)
        ),
        "has index .* in chunk 0; expected less than 64": with_bits(
            codec, payload, lambda bits: bits.__setitem__(slice(16, None), [1] * 8 * width + [0, *[0, 1] * 8])
        ),
    }  # fmt: skip
    for message, damaged in cases.items():
        with pytest.raises(ValueError, match=message):
            codec.decode(damaged)


@pytest.mark.parametrize(("chunk", "k"), [(256, 16), (64, 64), (4096, 64)])
def test_damaged_and_random_bytes_are_refused_or_are_the_one_encoding_of_what_they_say(chunk, k):
    codec, drawn = SparseCodec(SHAPES, chunk, k), random.Random(f"damage {chunk} {k}")
    payload = codec.encode(made_up(8), 9)
    num_accepted = 0
    for _ in range(MUTATIONS):
        damaged = bytearray(payload)
        kind = drawn.randrange(5)
        for _ in range(drawn.randint(1, 4)):
            place = drawn.randrange(len(damaged))
            if kind == 0:
                damaged[place] ^= 1 << drawn.randrange(8)
            elif kind == 1:
                damaged[place:] = drawn.randbytes(len(damaged) - place)
            elif kind == 2:
                del damaged[place : place + drawn.randint(1, 9)]
            elif kind == 3:
                damaged[place:place] = drawn.randbytes(drawn.randint(1, 9))
            else:
                damaged = bytearray(drawn.randbytes(drawn.choice([0, 3, len(payload), codec.most_bytes])))
                damaged[: len(MARK)] = MARK
        try:
            update = codec.decode(bytes(damaged))
        except ValueError:
            continue
        num_accepted += 1
        assert encoded_again(codec, update) == damaged
        assert math.isfinite(update.norm)
    assert num_accepted > 0, "signs may flip unnoticed: that is another value, not damage"


def test_a_hostile_message_takes_no_more_memory_than_an_honest_one():
    codec = SparseCodec(((1000, 1000),))
    honest = codec.encode(made_up(9, ((1000, 1000),)), 9)
    head = honest[: LEVELS_START + 8]

    def peak(payload):
        tracemalloc.start()
        with pytest.raises(ValueError, match="A sparse update"):
            codec.decode(payload)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    limit = 40 * codec.most_bytes
    assert peak(b"\xff" * 10**8) < limit
    for filling in (b"\x00", b"\xff", b"\x55"):
        assert peak(head + filling * (codec.most_bytes - len(head))) < limit
