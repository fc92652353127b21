"""Tables that name pictures and their captions: CSV, TSV, JSON and JSON lines, as people and programs write them."""

import codecs
import csv
import itertools
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipelines.tasks.text_to_image.data_preparation.reading.captions import LARGEST_TEXT
from pipelines.tasks.text_to_image.data_preparation.reading.labels import (
    LARGEST_METADATA_BYTES,
    fields_of,
    first_value,
    fold_name,
    parse_json,
    parse_metadata,
)
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import PICTURE_SUFFIXES, readable_name

TABLE_NAMES = tuple(
    f"{stem}{suffix}" for stem in ("metadata", "captions", "labels") for suffix in (".jsonl", ".csv", ".tsv")
)
TEXT_TABLE_NAMES = ("captions.txt", "flickr8k.token.txt", "results_20130124.token", "results.csv")
"""Tables whose names might be those of a picture's caption: the ways in which Flickr8k and Flickr30k are handed out."""

FILE_COLUMNS = ("file_name", "filename", "file", "image", "image_path", "path", "img", "image_name")
LARGEST_JSON_TABLE = 160 * 2**20
"""Bytes of a JSON file of captions: COCO's have 92 MB, Karpathy's 144; larger ones are of boxes and key points."""

NUMBER_OF_CAPTION = re.compile(r"(?<=\.\w{3})#\d{1,3}$|(?<=\.\w{4})#\d{1,3}$")
"""Flickr8k numbers the captions of a picture: NAME.jpg#0."""

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,10}://\S", re.I)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table."""

    number: int
    """Counted from 1, the header left out."""
    values: dict[str, object] | None
    """By column; None for a row that is damaged."""
    file: str | None = None
    """The picture it is about, relative to the table's folder, in NFC; None if it names none."""


class TableDamage(ValueError):
    """A table that cannot be read further."""


def is_table(name: str) -> bool:
    """Whether a file of this name is read as a table."""
    return name.lower() in TABLE_NAMES


def may_be_table(name: str) -> bool:
    """Whether a file of this name may be a table, if it belongs to no picture of its own name."""
    return is_json(name) or name.lower() in TEXT_TABLE_NAMES


def is_json(name: str) -> bool:
    """Whether a file of this name may be a table in one JSON value."""
    return name.lower().endswith(".json")


def read_table(path: Path, named_by: Sequence[str] = FILE_COLUMNS) -> Iterator[Row]:
    """The rows in their order, one at a time. TableDamage when no more can be read.

    `named_by`: the usual names of the column that says which picture a row is about, by file or by address. A table of
    this column and captions may lack the line with the columns' names.
    """
    try:
        with path.open("rb") as file:
            encoding = _encoding(file)
        # What is not UTF-8 becomes lone surrogates, by which a damaged caption is known.
        with path.open(encoding=encoding, errors="surrogateescape", newline="") as lines:
            values = _json_rows(lines) if path.suffix.lower() == ".jsonl" else _csv_rows(lines, named_by)
            yield from _numbered(values)
    except (csv.Error, UnicodeError) as error:
        raise TableDamage(f"damaged ({error})") from error
    except OSError as error:
        raise TableDamage(f"cannot be read ({error.strerror})") from error


def read_json_table(path: Path) -> list[Row]:
    """What may be rows in a JSON file of many captions; none if it is something else, or larger than such files are.

    COCO's: `images` and `annotations`; Karpathy's: `images` with `sentences`; a list of objects; captions by file name.
    """
    try:
        content = parse_json(path.read_bytes()) if path.stat().st_size <= LARGEST_JSON_TABLE else None
    except OSError:
        return []
    return list(_numbered(row if isinstance(row, dict) else None for row in _rows_in(content)))


def normalised(file_name: object) -> str:
    """A path as tables of all systems write it, in the one way in which it is looked up. It is never opened."""
    text = unicodedata.normalize("NFC", str(file_name)[:4096].strip().replace("\\", "/"))
    return posixpath.normpath(text)


def _numbered(rows: Iterable[dict[str, object] | None]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        found = first_value(fields_of(row), FILE_COLUMNS) if row else None
        yield Row(number=number, values=row, file=NUMBER_OF_CAPTION.sub("", normalised(found)) if found else None)


def _rows_in(content: object) -> Iterable[object]:
    """What may be rows, of any type, in the JSON of programs."""
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        return ()
    images, annotations = content.get("images"), content.get("annotations")
    if isinstance(images, list) and isinstance(annotations, list):
        return _coco_rows(images, annotations)
    if isinstance(images, list):
        return _karpathy_rows(images)
    if content and all(name.lower().endswith(PICTURE_SUFFIXES) for name in content):
        pairs = ((name, said if isinstance(said, list) else [said]) for name, said in content.items())
        return [_with_file(name, caption) for name, captions in pairs for caption in captions]
    return ()


def _coco_rows(images: list, annotations: list) -> Iterable[object]:
    """A row for each caption, and for what is damaged; none for boxes and the like."""
    by_id = {str(image.get("id")): image for image in images if isinstance(image, dict)}
    for said in annotations:
        if not isinstance(said, dict):
            yield None
        elif "caption" in said:
            yield {**by_id.get(str(said.get("image_id")), {}), **said}


def _karpathy_rows(images: list) -> Iterable[object]:
    for image in images:
        folder, name = (image.get("filepath"), image.get("filename")) if isinstance(image, dict) else (None, None)
        sentences = image.get("sentences") if name else None
        for said in sentences if isinstance(sentences, list) else ():
            caption = said.get("raw") if isinstance(said, dict) else said
            yield {"file_name": f"{folder}/{name}" if folder else name, "caption": caption}


def _with_file(name: str, said: object) -> dict[str, object]:
    return {**said, "file_name": name} if isinstance(said, dict) else {"file_name": name, "caption": said}


def _encoding(file: IO[bytes]) -> str:
    start = file.read(4)
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _json_rows(lines: IO[str]) -> Iterator[dict[str, object] | None]:
    while line := lines.readline(LARGEST_METADATA_BYTES):
        if line.strip():
            yield parse_metadata(line)


def _csv_rows(lines: IO[str], named_by: Sequence[str]) -> Iterator[dict[str, object] | None]:
    header = lines.readline(LARGEST_METADATA_BYTES)
    # Captions have commas, and hardly tabs. Spreadsheets of countries that write 1,5 separate columns by semicolons.
    delimiter = "\t" if "\t" in header else max(",;|", key=header.count)
    first = next(csv.reader([header], delimiter=delimiter), [])
    names = _without_header(first, named_by)
    begun = [first] if names else []
    names = names or first
    if len(set(names)) < len(names):
        raise TableDamage("two columns have the same name")
    rows = _tab_rows(lines, len(names)) if delimiter == "\t" else csv.reader(lines, delimiter=delimiter)
    # Cells beyond the header, and rows with too few, make captions of other pictures' words: such rows are damaged.
    for cells in itertools.chain(begun, rows):
        if cells:
            yield dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None


def _without_header(cells: Sequence[str], named_by: Sequence[str]) -> list[str]:
    """The names of columns if the first line is a row already; none if it is their names."""
    if any(fold_name(cell) in named_by for cell in cells):
        return []
    named = [index for index, cell in enumerate(cells) if _names_a_picture(cell)]
    if not named:
        return []
    if len(named) > 1 or len(cells) > 2:
        shown = ", ".join(readable_name(cell) for cell in cells)[:300]
        raise TableDamage(
            f"its first line should name the columns and is {shown}; put one before it, as {named_by[0]},caption"
        )
    return [named_by[0] if index in named else "caption" for index in range(len(cells))]


def _names_a_picture(cell: str) -> bool:
    """Whether a cell is an address or the name of a picture's file."""
    name = NUMBER_OF_CAPTION.sub("", cell.strip())
    return bool(ADDRESS.match(name)) or name.lower().endswith(PICTURE_SUFFIXES)


def _tab_rows(lines: IO[str], num_columns: int) -> Iterator[list[str]]:
    """The cells of each row: a quote that is never closed, as crawls have them, does not swallow the rows after it."""
    line = lines.readline(LARGEST_METADATA_BYTES)
    while line:
        row, line = line, lines.readline(LARGEST_METADATA_BYTES)
        while row.count('"') % 2 and line and line.count("\t") + 1 != num_columns and len(row) < LARGEST_TEXT:
            row, line = row + line, lines.readline(LARGEST_METADATA_BYTES)
        plain = row.rstrip("\r\n").split("\t")
        try:
            cells = next(csv.reader([row], delimiter="\t"), [])
        except csv.Error:
            cells = plain
        yield plain if cells and len(cells) != num_columns == len(plain) else cells
