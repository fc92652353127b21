"""Folders of pictures as people have them, and img2dataset's `files` output."""

import functools
import itertools
import os
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.data_preparation.filtering import DropReason
from pipelines.data_preparation.reading.reading_options import ReadingOptions
from pipelines.data_preparation.sources.assembly import (
    Part,
    SamplesOfKey,
    assemble,
    find_caption,
    make_sample,
    num_assembled,
    samples_after,
    with_fault,
)
from pipelines.data_preparation.sources.caption_tables import Row, TableDamage, is_table, read_table
from pipelines.data_preparation.sources.file_kinds import (
    PICTURE_SUFFIXES,
    FileKind,
    readable_name,
    split_name,
)
from pipelines.data_preparation.sources.sample import CaptionImage, SourceDamage
from pipelines.data_preparation.sources.tar_source import TAR_SUFFIXES

MOST_ROWS = 5_000_000
"""Rows of all tables of a folder; they are in memory."""

Rows = dict[str, list[dict[str, Any]]]


class FolderSource:
    """A folder of pictures with captions: `NAME.jpg` + `NAME.txt` + `NAME.json`, or a table beside the pictures.

    A table names each file and its caption: `metadata.jsonl`, `metadata.csv`, `captions.csv` and the like.
    """

    def __init__(self, path: Path, reading: ReadingOptions | None = None):
        self.path = path
        self.reading = reading or ReadingOptions()
        self.name = readable_name(path.resolve().name)
        self.num_bytes = 0
        self.num_pictures = 0
        self._tables: list[str] = []
        for place, names in _walk(path):
            self._tables += [place + name for name in names if is_table(name)]
            pictures = [name for name in names if name.lower().endswith(PICTURE_SUFFIXES)]
            self.num_pictures += len(pictures)
            self.num_bytes += sum(_state_of(path / (place + name))[0] for name in pictures)

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All from `begin` on: pictures, folder by folder in the order of names; then what only tables have."""
        rows, faulty_rows, damages = self._read_tables()
        num_samples = begin
        found = itertools.chain(self._found(rows), self._absent(rows), [(len(faulty_rows), iter(faulty_rows))])
        for sample in samples_after(begin, found):
            num_samples += 1
            yield sample
        for reason in damages:
            yield SourceDamage(source=self.name, reason=reason, num_samples_read=num_samples)

    def _found(self, rows: Rows) -> Iterator[SamplesOfKey]:
        for place, names in _walk(self.path):
            by_key: dict[str, list[str]] = {}
            for name in names:
                # Tars are sources of their own.
                if not is_table(name) and not name.lower().endswith(TAR_SUFFIXES):
                    by_key.setdefault(split_name(place + name).key, []).append(place + name)
            for key in sorted(by_key):
                yield from self._samples_of(key, by_key[key], rows)

    def _samples_of(self, key: str, names: list[str], rows: Rows) -> Iterator[SamplesOfKey]:
        parts = [self._part(name) for name in names]
        pictures = [name for name, part in zip(names, parts, strict=True) if part.name.kind is FileKind.PICTURE]
        others = [part for part in parts if part.name.kind is not FileKind.PICTURE]
        for picture in pictures:
            found = rows.pop(unicodedata.normalize("NFC", picture), [])
            parts = [self._part(picture), *others]
            yield num_assembled(parts, found), assemble(picture, self.name, parts, self.reading, found)
        if not pictures:
            yield num_assembled(others), assemble(key, self.name, others, self.reading)

    def _part(self, name: str) -> Part:
        size, obstacle = _state_of(self.path / name)
        return Part(
            name=split_name(name), size=size, obstacle=obstacle, read=functools.partial(_read, self.path / name)
        )

    def _read_tables(self) -> tuple[Rows, list[CaptionImage], list[str]]:
        rows: Rows = defaultdict(list)
        faulty, damages, num_rows = [], [], 0
        for name in self._tables:
            folder = name.rpartition("/")[0]
            try:
                for row in read_table(self.path / name):
                    num_rows += 1
                    if num_rows > MOST_ROWS:
                        raise TableDamage(f"more than {MOST_ROWS} rows in one folder: split it")
                    if row.values is None or row.file is None:
                        faulty.append(self._faulty(name, row))
                    else:
                        rows[f"{folder}/{row.file}" if folder else row.file].append(row.values)
            except TableDamage as damage:
                damages.append(f"{name}: {damage}")
        return rows, faulty, damages

    def _absent(self, rows: Rows) -> Iterator[SamplesOfKey]:
        for name in sorted(rows):
            yield num_assembled([], rows[name]), assemble(name, self.name, [], self.reading, rows[name])

    def _faulty(self, table: str, row: Row) -> CaptionImage:
        fields = list((row.values or {}).items())
        sample = make_sample(
            key=f"{table}:{row.number}",
            source=self.name,
            caption=find_caption(fields, [], self.reading),
            image_bytes=None,
            fields=fields,
        )
        return with_fault(sample, None if row.values else (DropReason.DAMAGED_METADATA, "row of a table"))


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The folders below with the names of their files, always in the same order; one folder is in memory at a time.

    A link to a folder counts as a file: it is not followed, for it may lead anywhere.
    """
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders.sort()
        relative = os.path.relpath(place, folder).replace(os.sep, "/")
        yield "" if relative == "." else f"{relative}/", sorted((*names, *links))


def _state_of(path: Path) -> tuple[int, str | None]:
    """The size of a file, and why it cannot be read: a pipe would wait for ever."""
    try:
        state = path.stat()
    except OSError as error:
        return 0, error.strerror or "unreadable"
    return state.st_size, None if stat.S_ISREG(state.st_mode) else "no regular file"


def _read(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most_bytes)
