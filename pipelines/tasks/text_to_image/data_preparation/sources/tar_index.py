"""Which members a tar has, found without reading their content; and what is wrong with a tar as a whole."""

import hashlib
import io
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import readable_name, split_name

BLOCK = tarfile.BLOCKSIZE
END_MARK = bytes(2 * BLOCK)
LARGEST_EXTENSION_BYTES = 2**20
"""Bytes of a long name or of PAX fields before a header."""
MOST_EXTENSIONS = 8
"""Long names and PAX fields in a row before one header."""
MOST_MEMBERS = 10_000_000
EXTENSIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
PLAIN_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
OBSTACLES = ("", "link", "device", "sparse file", "cut")
"""Why a member cannot be read, by its number in the index."""


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """One file of a tar."""

    name: str
    """As it is written."""
    offset: int
    """Byte at which its content begins."""
    size: int
    """Bytes of its content."""
    obstacle: str
    """Why it cannot be read, or nothing."""


class TarIndex:
    """The members of a tar; about 60 bytes each and their names."""

    def __init__(self, file: IO[bytes]):
        self.damage: str | None = None
        """What is wrong with the tar; members before the damage are in the index."""
        self._offsets, self._sizes, self._name_ends = array("q"), array("q"), array("q")
        self._keys, self._obstacles = array("Q"), array("B")
        self._names = bytearray()
        self._num_bytes = file.seek(0, 2)
        self._scan(file)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> TarMember:
        begin = self._name_ends[number - 1] if number else 0
        return TarMember(
            name=self._names[begin : self._name_ends[number]].decode("utf-8", "surrogatepass"),
            offset=self._offsets[number],
            size=self._sizes[number],
            obstacle=OBSTACLES[self._obstacles[number]],
        )

    def samples(self) -> Iterator[list[TarMember]]:
        """The members of each sample, in the order of the first member of its key, wherever the others lie."""
        if not len(self):
            return
        _, first, inverse = np.unique(np.frombuffer(self._keys, np.uint64), return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")
        borders = np.flatnonzero(np.diff(inverse[order])) + 1
        for begin, end in zip([0, *borders.tolist()], [*borders.tolist(), len(order)], strict=True):
            yield from _apart([self[number] for number in order[begin:end].tolist()])

    def _scan(self, file: IO[bytes]) -> None:
        # In this mode the constructor reads nothing, and nothing is ever written.
        tar = tarfile.TarFile(fileobj=io.BytesIO(), mode="w", encoding="utf-8")
        tar.fileobj = file
        try:
            self.damage = self._scan_headers(tar, file)
        except (tarfile.TarError, OSError, ValueError, OverflowError, IndexError, RecursionError) as error:
            self.damage = f"damaged ({str(error) or type(error).__name__})"
        if not len(self):
            self.damage = self.damage or "no members"

    def _scan_headers(self, tar: tarfile.TarFile, file: IO[bytes]) -> str | None:
        position = 0
        while True:
            file.seek(position)
            block = file.read(BLOCK)
            if len(block) < BLOCK:
                return "no end-of-archive mark" if position else f"not a tar: it has {len(block)} bytes"
            if not any(block):
                return self._look_behind(file, position)
            if len(self) == MOST_MEMBERS:
                return f"more than {MOST_MEMBERS} members"
            header = _header_at(tar, position, block)
            if header is None:
                return f"no header at byte {position}" if position else f"not a tar: it begins with {block[:12]!r}"
            self._add(header)
            position = tar.offset
            if position > self._num_bytes:
                return f"cut in {readable_name(header.name)[-60:]}"

    def _add(self, header: tarfile.TarInfo) -> None:
        if header.isdir():
            return
        name = header.name.removeprefix("./")
        key = split_name(name).key.encode("utf-8", "surrogatepass")
        self._names += name.encode("utf-8", "surrogatepass")
        self._name_ends.append(len(self._names))
        self._keys.append(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big"))
        self._offsets.append(header.offset_data)
        self._sizes.append(min(header.size, self._num_bytes))
        self._obstacles.append(OBSTACLES.index(self._obstacle(header)))

    def _obstacle(self, header: tarfile.TarInfo) -> str:
        if header.islnk() or header.issym():
            return "link"
        if not header.isfile():
            return "device"
        if header.issparse():
            return "sparse file"
        return "cut" if header.offset_data + header.size > self._num_bytes else ""

    def _look_behind(self, file: IO[bytes], position: int) -> str | None:
        """Judge what follows a first block of zeros: another one and then nothing, in a whole tar."""
        if self._num_bytes - position < len(END_MARK):
            return "no end-of-archive mark"
        file.seek(position)
        while chunk := file.read(2**20):
            if any(chunk):
                return f"data after the end-of-archive mark at byte {position}: several tars in one file?"
        return None


def _header_at(tar: tarfile.TarFile, position: int, block: bytes) -> tarfile.TarInfo | None:
    """The member whose headers begin here, None if there is no header; `tar.offset` is then where the next one is."""
    try:
        if block[156:157] in PLAIN_TYPES:  # nearly all: a third of the time of the general way
            header = tarfile.TarInfo.frombuf(block, tar.encoding, tar.errors)
            header.offset_data = position + BLOCK
            tar.offset = header.offset_data + -(-header.size // BLOCK) * BLOCK
        else:
            _check_extensions(tar, position)
            tar.fileobj.seek(position)
            tar.offset, tar.pax_headers = position, {}  # fields for all members could grow without end
            header = tarfile.TarInfo.fromtarfile(tar)
    except tarfile.SubsequentHeaderError as error:
        raise tarfile.ReadError(f"no header after the long name at byte {position}: {error}") from None
    except tarfile.HeaderError:
        return None
    if header.size < 0 or tar.offset <= position:
        raise tarfile.ReadError(f"a member of {header.size} bytes at byte {position}")
    return header


def _check_extensions(tar: tarfile.TarFile, position: int) -> None:
    """Refuse long names and PAX fields so large or so many that reading them would cost memory or the stack."""
    for _ in range(MOST_EXTENSIONS):
        tar.fileobj.seek(position)
        try:
            header = tarfile.TarInfo.frombuf(tar.fileobj.read(BLOCK), tar.encoding, tar.errors)
        except tarfile.HeaderError:
            return
        if header.type not in EXTENSIONS:
            return
        if not 0 <= header.size <= LARGEST_EXTENSION_BYTES:
            raise tarfile.ReadError(f"a name of {header.size} bytes at byte {position}")
        position += BLOCK + -(-header.size // BLOCK) * BLOCK
    raise tarfile.ReadError(f"more than {MOST_EXTENSIONS} long names at byte {position}")


def _apart(members: list[TarMember]) -> Iterator[list[TarMember]]:
    """Tell samples of one key apart: a name that comes again belongs to another sample.

    If all names come equally often, the first ones belong together, wherever they lie; else those that are neighbours.
    """
    suffixes = [split_name(member.name).suffix for member in members]
    counts = Counter(suffixes)
    if len(members) == len(counts):
        yield members
    elif len(set(counts.values())) == 1:
        seen: Counter[str] = Counter()
        samples: list[list[TarMember]] = [[] for _ in range(counts[suffixes[0]])]
        for member, suffix in zip(members, suffixes, strict=True):
            samples[seen[suffix]].append(member)
            seen[suffix] += 1
        yield from samples
    else:
        sample: dict[str, TarMember] = {}
        for member, suffix in zip(members, suffixes, strict=True):
            if suffix in sample:
                yield list(sample.values())
                sample = {}
            sample[suffix] = member
        yield list(sample.values())
