"""What is written as a frame is read as it was, and nothing else is read."""

import asyncio

import msgpack
import pytest
import torch

from pipelines.core.swarm.streams.frames import (
    DTYPES,
    HEADER,
    MOST_MAP_BYTES,
    MOST_TENSORS,
    Frame,
    Kind,
    buffers_of,
    read_header,
    read_rest,
)
from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal

MOST_TENSOR_BYTES = 1000


def read(data: bytes) -> Frame:
    async def feed_and_read() -> Frame:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_rest(reader, await read_header(reader, MOST_TENSOR_BYTES))

    return asyncio.run(feed_and_read())


def written(body, tensors=()) -> bytes:
    return b"".join(buffers_of(Frame(kind=Kind.MESSAGE, body=body, tensors=dict(tensors))))


def frame_of(content: object, *, kind: int = Kind.MESSAGE, tensors: bytes = b"", announced: int | None = None) -> bytes:
    packed = content if isinstance(content, bytes) else msgpack.packb(content)
    return HEADER.pack(kind, len(packed), len(tensors) if announced is None else announced) + packed + tensors


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_kind_arrive_as_they_were(dtype):
    given = (torch.arange(24).reshape(2, 3, 4) - 7).to(DTYPES[dtype])
    frame = read(
        written({"text": "ä", "numbers": [1, 2.5, None]}, dict(a=given, b=given.transpose(0, 2), c=given[0, 0, 0]))
    )
    assert frame.body == {"text": "ä", "numbers": [1, 2.5, None]}
    assert torch.equal(frame.tensors["a"], given)
    assert torch.equal(frame.tensors["b"], given.transpose(0, 2))
    assert frame.tensors["c"].shape == ()
    frame.tensors["a"] += 1  # it is the reader's own memory


def test_an_empty_tensor_keeps_its_shape():
    assert read(written({}, dict(none=torch.empty(3, 0)))).tensors["none"].shape == (3, 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame_of({}), "malformed"),
        (frame_of([1, 2]), "malformed"),
        (frame_of(b"\xc1"), "malformed"),
        (frame_of(b"\x91" * 5000), "malformed"),
        (frame_of({"body": [], "tensors": []}), "malformed"),
        (frame_of({"body": {1: 2}, "tensors": []}), "malformed"),
        (frame_of({"body": {"a": msgpack.ExtType(64, b"\x90")}, "tensors": []}), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "float32"]]}), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "float64", [1]]]}, tensors=bytes(8)), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "int8", [-1]]]}), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "int8", [True]]]}, tensors=bytes(1)), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "int8", [2]]]}, tensors=bytes(1)), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "int8", [1]], ["a", "int8", [1]]]}, tensors=bytes(2)), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "int8", [1] * 7]]}, tensors=bytes(1)), "malformed"),
        (frame_of({"body": {}, "tensors": [["a", "int8", [2**31 - 1] * 6]]}, tensors=bytes(1)), "malformed"),
        (frame_of({"body": {}, "tensors": [[str(n), "int8", [0]] for n in range(MOST_TENSORS + 1)]}), "malformed"),
        (frame_of({"body": {}, "tensors": []}, kind=9), "malformed"),
        (frame_of({"body": {"a": "a" * MOST_MAP_BYTES}, "tensors": []}), "too large"),
        (frame_of({"body": {}, "tensors": []}, announced=MOST_TENSOR_BYTES + 1), "too large"),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_with_its_kind(data, code):
    with pytest.raises(Refusal) as refused:
        read(data)
    assert refused.value.code == code


@pytest.mark.parametrize("length", [0, 5, HEADER.size, HEADER.size + 3, -1])
def test_a_stream_that_ends_in_a_frame_is_a_peer_that_has_gone(length):
    with pytest.raises(PeerGoneError):
        read(written(dict(text="a"), dict(a=torch.ones(100)))[:length])


def test_too_much_is_not_sent():
    with pytest.raises(ValueError, match="too large to send"):
        written(dict(a="a" * MOST_MAP_BYTES))
    with pytest.raises(ValueError, match=r"is torch\.float64, expected one of float32"):
        written({}, dict(a=torch.ones(1, dtype=torch.float64)))
