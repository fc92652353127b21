"""Folders of pictures as people have them, and img2dataset's `files` output."""

import functools
import itertools
import posixpath
import stat
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from hub_tools.foreign.linked_folders import walk_once
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.reading.labels import fields_of
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.assembly import (
    CaptionFound,
    SampleFile,
    SamplesOfKey,
    assemble,
    find_caption,
    make_sample,
    num_assembled,
    samples_after,
    with_fault,
)
from pipelines.tasks.text_to_image.data_preparation.sources.caption_tables import (
    Row,
    TableDamage,
    is_json,
    is_table,
    may_be_table,
    read_json_table,
    read_table,
)
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import (
    PICTURE_SUFFIXES,
    FileKind,
    readable_name,
    split_name,
)
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, SourceDamage
from pipelines.tasks.text_to_image.data_preparation.sources.tar_source import TAR_SUFFIXES

MOST_ROWS = 5_000_000
"""Rows of all tables of a folder; they are in memory."""

ROWS_LOOKED_AT = 1000
"""First rows of a table, which tell where the pictures are that it names."""

Rows = dict[str, list[dict[str, object]]]


class FolderSource:
    """A folder of pictures with captions: `NAME.jpg` + `NAME.txt` + `NAME.json`, or a table beside the pictures.

    A table names each file and its caption: `metadata.jsonl`, `metadata.csv`, `captions.csv` and the like, or COCO's
    JSON. Its names are relative to its own folder, or to another one if there is none of them.
    """

    def __init__(self, path: Path, reading: ReadingOptions | None = None):
        self.path = path
        self.reading = reading or ReadingOptions()
        self.name = readable_name(path.resolve().name)
        self.num_bytes = 0
        self.num_pictures = 0
        self._tables: list[str] = []
        for place, names in walk_once(path):
            pictures = [name for name in names if name.lower().endswith(PICTURE_SUFFIXES)]
            keys = {split_name(name).key for name in pictures}
            loose = (name for name in names if may_be_table(name) and split_name(name).key not in keys)
            self._tables += [place + name for name in (*filter(is_table, names), *loose)]
            self.num_pictures += len(pictures)
            self.num_bytes += sum(_state_of(path / (place + name))[0] for name in pictures)

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All from `begin` on: pictures, folder by folder in the order of names; then what only tables have."""
        damages: list[str] = []
        rows, faulty_rows, tables = self._read_tables(damages)
        num_samples = begin
        left_over = [(len(faulty_rows), iter(faulty_rows))]
        found = itertools.chain(self._found(rows, tables, damages), self._absent(rows), left_over)
        for sample in samples_after(begin, found):
            num_samples += 1
            yield sample
        for reason in damages:
            yield SourceDamage(source=self.name, reason=reason, num_samples_read=num_samples)

    def _found(self, rows: Rows, tables: set[str], damages: list[str]) -> Iterator[SamplesOfKey]:
        for place, names in walk_once(self.path, lambda error: damages.append(f"{error.filename}: {error.strerror}")):
            by_key: dict[str, list[str]] = {}
            for name in names:
                # Tars are sources of their own.
                if place + name not in tables and not name.lower().endswith(TAR_SUFFIXES):
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

    def _part(self, name: str) -> SampleFile:
        size, obstacle = _state_of(self.path / name)
        return SampleFile(
            name=split_name(name), size=size, obstacle=obstacle, read=functools.partial(_read, self.path / name)
        )

    def _read_tables(self, damages: list[str]) -> tuple[Rows, list[CaptionImage], set[str]]:
        """The rows by the picture that they name, those that name none, and which files are tables."""
        rows: Rows = defaultdict(list)
        faulty: list[CaptionImage] = []
        tables: set[str] = set()
        num_rows = 0
        for name in self._tables:
            table = self._rows_of(name, damages)
            first = list(itertools.islice(table, ROWS_LOOKED_AT))
            if may_be_table(name) and not any(map(self._is_captioned, first)):
                continue
            tables.add(name)
            folder = self._folder_of(first, name.rpartition("/")[0])
            for row in itertools.chain(first, table):
                num_rows += 1
                if num_rows > MOST_ROWS:
                    damages.append(f"{name}: more than {MOST_ROWS} rows in one folder: split it")
                    break
                if row.values is None or row.file is None:
                    faulty.append(self._faulty(name, row))
                else:
                    rows[f"{folder}/{row.file}" if folder else row.file].append(row.values)
        return rows, faulty, tables

    def _rows_of(self, table: str, damages: list[str]) -> Iterator[Row]:
        try:
            if not is_json(table):
                yield from read_table(self.path / table)
            elif _state_of(self.path / table)[1] is None:
                yield from read_json_table(self.path / table)
        except TableDamage as damage:
            damages.append(f"{table}: {damage}")

    def _is_captioned(self, row: Row) -> bool:
        found = find_caption(fields_of(row.values or {}), [], self.reading)
        return row.file is not None and found != CaptionFound()

    def _folder_of(self, rows: Sequence[Row], own: str) -> str:
        """The folder to which a table's names are relative: its own, else that in which most of them are.

        COCO's captions are in `annotations`, its pictures in `train2017`.
        """
        files = {posixpath.basename(row.file): row.file for row in rows if row.file}
        if not files or any(_state_of(self.path / own / file)[1] is None for file in files.values()):
            return own
        found: Counter[str] = Counter()
        for place, names in walk_once(self.path):
            for name in names:
                name = unicodedata.normalize("NFC", place + name)
                file = files.get(posixpath.basename(name))
                if file and f"/{name}".endswith(f"/{file}"):
                    found[name.removesuffix(file).rstrip("/")] += 1
        return found.most_common(1)[0][0] if found else own

    def _absent(self, rows: Rows) -> Iterator[SamplesOfKey]:
        for name in sorted(rows):
            yield num_assembled([], rows[name]), assemble(name, self.name, [], self.reading, rows[name])

    def _faulty(self, table: str, row: Row) -> CaptionImage:
        fields = fields_of(row.values or {})
        sample = make_sample(
            key=f"{table}:{row.number}",
            source=self.name,
            caption=find_caption(fields, [], self.reading),
            image_bytes=None,
            fields=fields,
        )
        return with_fault(sample, None if row.values else (DropReason.DAMAGED_METADATA, "row of a table"))


def _state_of(path: Path) -> tuple[int, str | None]:
    """The size of a file, and why it cannot be read: a pipe would wait for ever."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in a name
        return 0, getattr(error, "strerror", None) or "unreadable"
    obstacle = "link to a folder that is read anyway" if stat.S_ISDIR(state.st_mode) else "no regular file"
    return state.st_size, None if stat.S_ISREG(state.st_mode) else obstacle


def _read(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most_bytes)
