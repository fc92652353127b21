"""Webdataset tars, such as img2dataset writes; plain or compressed."""

import bz2
import contextlib
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.assembly import (
    SampleFile,
    SamplesOfKey,
    assemble,
    num_assembled,
    samples_after,
    with_fault,
)
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import FileKind, readable_name, split_name
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, SourceDamage
from pipelines.tasks.text_to_image.data_preparation.sources.tar_index import TarIndex, TarMember

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
COMPRESSIONS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""By the first bytes: a name may be wrong."""
MOST_TIMES_LARGER = 200
"""How many times larger a tar may become than it was compressed; text shrinks to a tenth, zeros to a thousandth."""
LARGEST_UNPACKED_BYTES = 2**38


class TarSource:
    """A webdataset tar: the files of one key are one sample, wherever they lie in it.

    `KEY.jpg` (or another format), `KEY.txt` and `KEY.json` with LAION's fields. Nothing is extracted under a name of
    the tar: a compressed one is unpacked into a temporary file without a name.
    """

    def __init__(self, path: Path, reading: ReadingOptions | None = None, name: str | None = None):
        self.path = path
        self.reading = reading or ReadingOptions()
        self.name = name or readable_name(path.name)
        self.num_bytes = path.stat().st_size if path.exists() else 0  # a link that leads nowhere is damage

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All samples from `begin` on, in the order of their first members."""
        num_samples = begin
        try:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(self.path.open("rb"))
                file, damage = _unpacked(file, self.num_bytes, stack)
                index = TarIndex(file)
                damage = damage or index.damage
                found = _samples_of(file, index, self.name, self.reading, is_damaged=damage is not None)
                for sample in samples_after(begin, found):
                    num_samples += 1
                    yield sample
        except OSError as error:
            damage = f"cannot be read ({error.strerror or error})"
        if damage is not None:
            yield SourceDamage(source=self.name, reason=damage, num_samples_read=num_samples)


def _samples_of(
    file: IO[bytes], index: TarIndex, source: str, reading: ReadingOptions, *, is_damaged: bool
) -> Iterator[SamplesOfKey]:
    last = len(index) - 1
    usual_kinds: set[FileKind] | None = None
    key_before, number = None, 0
    for members in index.samples():
        parts = [_part(file, member) for member in members]
        kinds = {part.name.kind for part in parts}
        usual_kinds = usual_kinds or kinds
        # The last sample of a cut tar may have lost parts, its label among them.
        is_cut = is_damaged and index[last] in members and not kinds >= usual_kinds
        is_cut = is_cut or any(member.obstacle == "cut" for member in members)
        key = parts[0].name.key
        number = number + 1 if key == key_before else 1
        key_before = key
        assembled = assemble(key if number == 1 else f"{key}##{number}", source, parts, reading)
        yield num_assembled(parts), map(_as_incomplete, assembled) if is_cut else assembled


def _as_incomplete(sample: CaptionImage) -> CaptionImage:
    return with_fault(replace(sample, fault=None), (DropReason.INCOMPLETE, ""))


def _part(file: IO[bytes], member: TarMember) -> SampleFile:
    def read(most_bytes: int) -> bytes:
        file.seek(member.offset)
        return file.read(min(most_bytes, member.size))

    return SampleFile(name=split_name(member.name), size=member.size, read=read, obstacle=member.obstacle or None)


def _unpacked(file: IO[bytes], num_bytes: int, stack: contextlib.ExitStack) -> tuple[IO[bytes], str | None]:
    """The tar itself, and what was wrong with its compression; what was unpacked before can be read."""
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return file, "compressed with zstd, which is not read: unpack it with unzstd"
    opener = next((opener for mark, opener in COMPRESSIONS.items() if start.startswith(mark)), None)
    if opener is None:
        return file, None
    packed, whole = stack.enter_context(opener(file)), tempfile.TemporaryFile()  # noqa: SIM115
    stack.callback(whole.close)
    most_bytes = min(LARGEST_UNPACKED_BYTES, 2**28 + MOST_TIMES_LARGER * num_bytes)
    while True:
        try:
            chunk = packed.read1(2**20)  # unlike read, it gives what it has before it fails
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            return whole, f"damaged compression ({error})"
        if not chunk:
            return whole, None
        if whole.tell() + len(chunk) > most_bytes:
            return whole, f"more than {most_bytes} bytes unpacked"
        _write(whole, chunk)


def _write(whole: IO[bytes], chunk: bytes) -> None:
    try:
        whole.write(chunk)
    except OSError as error:  # a full disk is no fault of the tar: its samples must not count as lost
        raise ValueError(
            f"A compressed tar cannot be unpacked into {tempfile.gettempdir()}: {error}. "
            "Free space there, or set TMPDIR to another folder."
        ) from error
