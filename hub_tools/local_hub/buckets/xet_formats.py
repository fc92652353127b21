"""What a client of Xet storage sends, read and checked: xorbs, which are compressed chunks, and shards, which say of
which chunks files consist.

Formats and hashes are those of https://github.com/huggingface/xet-core, folder `xet_core_structures/src`:
`xorb_object/xorb_chunk_format.rs`, `metadata_shard/file_structs.rs`, `merklehash/aggregated_hashes.rs`.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow
from blake3 import blake3

from ..protocol.hub_error import bad_request

HASH_BYTES = 32
MAX_XORB_BYTES = 65 << 20
"""64 MiB of chunks, and their headers."""

MAX_XORB_CHUNKS = 8192
MAX_CHUNK_BYTES = 128 << 10
MAX_SHARD_BYTES = 64 << 20

CHUNK_HEADER_BYTES = 8
XORB_FOOTER_MARK = b"XETBLOB"
SHARD_MARK = b"HFRepoMetaData\0" + bytes(
    (85, 105, 103, 69, 106, 123, 129, 87, 131, 165, 189, 217, 92, 205, 209, 74, 169)
)
SHARD_HEADER_BYTES = 48
ENTRY = struct.Struct("<32s4I")
END_OF_FILES = b"\xff" * HASH_BYTES
WITH_VERIFICATION, WITH_METADATA = 1 << 31, 1 << 30

CHUNK_KEY = bytes((
    102, 151, 245, 119, 91, 149, 80, 222, 49, 53, 203, 172, 165, 151, 24, 28,
    157, 228, 33, 16, 155, 235, 43, 88, 180, 208, 176, 75, 147, 173, 242, 41,
))  # fmt: skip
NODE_KEY = bytes((
    1, 126, 197, 199, 165, 71, 41, 150, 253, 148, 102, 102, 180, 138, 2, 230,
    93, 221, 83, 111, 55, 199, 109, 210, 248, 99, 82, 230, 74, 83, 113, 63,
))  # fmt: skip
FILE_KEY = bytes(HASH_BYTES)
EMPTY_FILE = "0" * 64


@dataclass(frozen=True)
class Chunk:
    """One chunk of a xorb."""

    hash: bytes
    end: int
    """Where it ends in the xorb's body, its header included."""

    length: int
    """Bytes of its content."""


@dataclass(frozen=True)
class Term:
    """A run of chunks of one xorb, as a part of a file."""

    xorb: str
    first: int
    end: int
    """Index after the last chunk."""


@dataclass(frozen=True)
class FileRecipe:
    """Of which chunks a file consists, as its uploader says."""

    hash: str
    terms: tuple[Term, ...]


def hash_text(value: bytes) -> str:
    """Return a hash as Xet writes it: four little-endian numbers of 64 bits, each as 16 hex digits."""
    return "".join(value[i : i + 8][::-1].hex() for i in range(0, HASH_BYTES, 8))


def read_xorb(body: bytes) -> list[Chunk]:
    """Return the chunks in a xorb's body, whose footer may be missing; raises a 400 for any that is damaged."""
    chunks = [Chunk(_keyed(CHUNK_KEY, content), end, len(content)) for end, content in unpacked(body)]
    if not chunks:
        raise bad_request("The xorb has no chunks")
    return chunks


def unpacked(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where each chunk ends in a xorb's body, or in some whole chunks of one, and its content; 400 for damage."""
    position = num_chunks = 0
    while position < len(body) and not body.startswith(XORB_FOOTER_MARK, position):
        header = body[position : position + CHUNK_HEADER_BYTES]
        packed, length = int.from_bytes(header[1:4], "little"), int.from_bytes(header[5:8], "little")
        start = position + CHUNK_HEADER_BYTES
        position = start + packed
        if len(header) < CHUNK_HEADER_BYTES or header[0] or not 0 < length <= MAX_CHUNK_BYTES or position > len(body):
            raise bad_request(f"Chunk {num_chunks} of the xorb is malformed")
        if num_chunks == MAX_XORB_CHUNKS:
            raise bad_request(f"The xorb has more than {MAX_XORB_CHUNKS} chunks")
        num_chunks += 1
        yield position, _unpacked(header[4], body[start:position], length)


def xorb_hash(chunks: Sequence[Chunk]) -> str:
    """Return the hash under which these chunks are stored together."""
    return hash_text(_root(chunks))


def file_hash(chunks: Sequence[Chunk]) -> str:
    """Return the hash of the file that consists of these chunks."""
    return hash_text(_keyed(FILE_KEY, _root(chunks))) if chunks else EMPTY_FILE


def read_shard(body: bytes) -> list[FileRecipe]:
    """Return what a shard says about files; raises a 400 if it is malformed. What it says of xorbs is not used."""
    if not body.startswith(SHARD_MARK):
        raise bad_request("The shard does not begin like one")
    entries = _entries(body)
    recipes: list[FileRecipe] = []
    for name, flags, count, _, _ in entries:
        if name == END_OF_FILES:
            return recipes
        terms = tuple(Term(hash_text(xorb), first, end) for xorb, _, _, first, end in _take(entries, count))
        recipes.append(FileRecipe(hash_text(name), terms))
        _take(entries, (count if flags & WITH_VERIFICATION else 0) + (1 if flags & WITH_METADATA else 0))
    raise bad_request("The shard's list of files has no end")


def _entries(body: bytes) -> Iterator[tuple[bytes, int, int, int, int]]:
    whole = len(body) - (len(body) - SHARD_HEADER_BYTES) % ENTRY.size
    return ENTRY.iter_unpack(memoryview(body)[SHARD_HEADER_BYTES:whole])


def _take(entries: Iterator[tuple[bytes, int, int, int, int]], count: int) -> list[tuple[bytes, int, int, int, int]]:
    taken = [entry for _, entry in zip(range(count), entries, strict=False)]
    if len(taken) < count:
        raise bad_request("The shard ends within a file")
    return taken


def _unpacked(scheme: int, packed: bytes, length: int) -> bytes:
    unpack = SCHEMES.get(scheme)
    try:
        content = None if unpack is None else unpack(packed, length)
    except (OSError, ValueError) as error:
        raise bad_request(f"A chunk of the xorb cannot be decompressed: {error}") from error
    if content is None or len(content) != length:
        raise bad_request(f"A chunk of the xorb is not {length} bytes in a known compression (its number is {scheme})")
    return content


def _lz4(packed: bytes, length: int) -> bytes:
    return pyarrow.decompress(packed, decompressed_size=length, codec="lz4", asbytes=True)


def _grouped_lz4(packed: bytes, length: int) -> bytes:
    """Undo a sorting of the bytes by their place in a word of 4."""
    grouped, content, start = _lz4(packed, length), bytearray(length), 0
    for place in range(4):
        count = len(range(place, length, 4))
        content[place::4] = grouped[start : start + count]
        start += count
    return bytes(content)


SCHEMES: dict[int, Callable[[bytes, int], bytes]] = {0: lambda packed, _: packed, 1: _lz4, 2: _grouped_lz4}


def _keyed(key: bytes, content: bytes) -> bytes:
    return blake3(content, key=key).digest()


def _root(chunks: Sequence[Chunk]) -> bytes:
    """Return the root of the tree whose nodes have 2 to 9 children, cut after a hash that 4 divides."""
    nodes = [(chunk.hash, chunk.length) for chunk in chunks]
    while len(nodes) > 1:
        merged, start = [], 0
        while start < len(nodes):
            end = start + _children(nodes[start : start + 9])
            text = "".join(f"{hash_text(name)} : {size}\n" for name, size in nodes[start:end])
            merged.append((_keyed(NODE_KEY, text.encode()), sum(size for _, size in nodes[start:end])))
            start = end
        nodes = merged
    return nodes[0][0]


def _children(nodes: Sequence[tuple[bytes, int]]) -> int:
    cuts = (index + 1 for index in range(2, len(nodes)) if nodes[index][0][24] % 4 == 0)
    return next(cuts, len(nodes))
