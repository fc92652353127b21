"""The frames of a conversation: a fixed header, a msgpack map, and raw tensors. Nothing is unpickled.

Layout: kind (1 byte), length of the map (4 bytes), length of all tensors (8 bytes), big-endian; then the map
`{"body": {...}, "tensors": [[name, dtype, shape], ...]}`, then the tensors' bytes in that order, in row-major order and
in this machine's byte order, which is little-endian wherever the project runs.
"""

import asyncio
import enum
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgpack
import torch
from torch import Tensor

from pipelines.core.swarm.streams.refusals import PeerGoneError, Refusal

HEADER = struct.Struct(">BIQ")

MOST_MAP_BYTES = 2**16
"""Of the msgpack map of a frame; prompts and records fit, pictures and hidden states are tensors."""

MOST_TENSORS, MOST_AXES, MOST_NAME_CHARACTERS = 256, 6, 128

CHUNK_BYTES = 2**20
"""Memory grows with what has arrived, not with what a header announces."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Kind(enum.IntEnum):
    """What a frame is for. The numbers and the forms of `HELLO` and `REFUSAL` are the same in every version."""

    HELLO = 0
    MESSAGE = 1
    HEARTBEAT = 2
    REFUSAL = 3
    END = 4


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One frame."""

    kind: Kind
    body: Mapping[str, object] = field(default_factory=dict)
    """Anything that msgpack writes, without its extension types; the services check the values."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def buffers_of(frame: Frame) -> list[bytes | memoryview]:
    """Return what is written for a frame, without copying tensors that are contiguous on the CPU.

    Raises `ValueError` for more or other tensors than a reader takes.
    """
    listed, blocks = [], []
    for name, tensor in frame.tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"Tensor {name} is {tensor.dtype}, expected one of {', '.join(DTYPES)}.")
        listed.append([name, NAMES[tensor.dtype], list(tensor.shape)])
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        blocks.append(flat.numpy().data)
    content = msgpack.packb({"body": dict(frame.body), "tensors": listed}, use_bin_type=True)
    if len(content) > MOST_MAP_BYTES or len(listed) > MOST_TENSORS:
        raise ValueError(f"A frame with {len(listed)} tensors and a map of {len(content)} bytes is too large to send.")
    header = HEADER.pack(frame.kind, len(content), sum(map(len, blocks)))
    return [header + content, *(block for block in blocks if len(block))]


@dataclass(frozen=True, kw_only=True)
class FrameHeader:
    """The sizes that a sender announces, checked against what the reader takes."""

    kind: Kind
    map_bytes: int
    tensor_bytes: int


async def read_header(reader: asyncio.StreamReader, most_tensor_bytes: int) -> FrameHeader:
    """Read the next header.

    Raises:
        PeerGoneError: the stream has ended.
        Refusal: the header is none, or announces more than is taken.
    """
    kind, map_bytes, tensor_bytes = HEADER.unpack(await _read(reader, HEADER.size))
    if kind not in Kind.__members__.values():
        raise Refusal("malformed", f"There is no frame of kind {kind}.")
    if map_bytes > MOST_MAP_BYTES or tensor_bytes > most_tensor_bytes:
        raise Refusal(
            "too large",
            f"The message has {map_bytes} bytes and tensors of {tensor_bytes}; at most {MOST_MAP_BYTES} and "
            f"{most_tensor_bytes} are taken.",
        )
    return FrameHeader(kind=Kind(kind), map_bytes=map_bytes, tensor_bytes=tensor_bytes)


async def read_rest(reader: asyncio.StreamReader, header: FrameHeader) -> Frame:
    """Read what follows a header.

    Raises:
        PeerGoneError: the stream has ended.
        Refusal: it is malformed.
    """
    body, listed = _unpacked(await _read(reader, header.map_bytes))
    sizes = [math.prod(shape) * DTYPES[dtype].itemsize for _, dtype, shape in listed]
    if sum(sizes) != header.tensor_bytes:
        raise Refusal("malformed", f"Tensors of {sum(sizes)} bytes are listed, and {header.tensor_bytes} announced.")
    tensors = {}
    for (name, dtype, shape), size in zip(listed, sizes, strict=True):
        data = bytearray()
        while len(data) < size:
            if not (part := await _receive(reader, min(CHUNK_BYTES, size - len(data)))):
                raise PeerGoneError("The other peer has closed the stream in the middle of a message.")
            data += part
        kind = DTYPES[dtype]
        tensors[name] = torch.frombuffer(data, dtype=kind).view(shape) if size else torch.empty(shape, dtype=kind)
    return Frame(kind=header.kind, body=body, tensors=tensors)


def _unpacked(content: bytes) -> tuple[dict[str, object], list[tuple[str, str, list[int]]]]:
    try:
        values = msgpack.unpackb(content, raw=False, ext_hook=_refuse_extension, strict_map_key=True)
        body, listed = values["body"], values["tensors"]
        is_well_formed = isinstance(body, dict) and isinstance(listed, list) and len(listed) <= MOST_TENSORS
        is_well_formed = is_well_formed and all(map(_names_a_tensor, listed))
        is_well_formed = is_well_formed and len({name for name, _, _ in listed}) == len(listed)
    except Exception:  # a stranger's bytes can fail in many ways
        is_well_formed = False
    if not is_well_formed:
        raise Refusal("malformed", "The message is not a map with a body and a list of tensors.")
    return body, listed


def _names_a_tensor(entry: Sequence[object]) -> bool:
    name, dtype, shape = entry
    return (
        isinstance(name, str)
        and len(name) <= MOST_NAME_CHARACTERS
        and dtype in DTYPES
        and isinstance(shape, list)
        and len(shape) <= MOST_AXES
        and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    )


def _refuse_extension(code: int, _data: bytes) -> None:
    raise ValueError(f"extension type {code}")


async def _read(reader: asyncio.StreamReader, number: int) -> bytes:
    try:
        return await reader.readexactly(number)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise PeerGoneError("The other peer has closed the stream.") from error


async def _receive(reader: asyncio.StreamReader, number: int) -> bytes:
    try:
        return await reader.read(number)
    except OSError as error:
        raise PeerGoneError("The other peer has closed the stream.") from error
