"""Tables that name pictures and their captions: CSV, TSV and JSON lines, as people and spreadsheets write them."""

import codecs
import csv
import posixpath
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipelines.data_preparation.reading.labels import LARGEST_METADATA_BYTES, fields_of, first_value, parse_metadata

TABLE_NAMES = tuple(
    f"{stem}{suffix}" for stem in ("metadata", "captions", "labels") for suffix in (".jsonl", ".csv", ".tsv")
)
FILE_COLUMNS = ("file_name", "filename", "file", "image", "image_path", "path", "img")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table."""

    number: int
    """Counted from 1, the header left out."""
    values: dict[str, Any] | None
    """By column; None for a row that is damaged."""
    file: str | None = None
    """The picture it is about, relative to the table's folder, in NFC; None if it names none."""


class TableDamage(ValueError):
    """A table that cannot be read further."""


def is_table(name: str) -> bool:
    """Whether a file of this name is read as a table."""
    return name.lower() in TABLE_NAMES


def read_table(path: Path) -> Iterator[Row]:
    """The rows in their order, one at a time. TableDamage when no more can be read."""
    try:
        with path.open("rb") as file:
            encoding = _encoding(file)
        # What is not UTF-8 becomes lone surrogates, by which a damaged caption is known.
        with path.open(encoding=encoding, errors="surrogateescape", newline="") as lines:
            values = _json_rows(lines) if path.suffix.lower() == ".jsonl" else _csv_rows(lines)
            for number, row in enumerate(values, 1):
                file_name = first_value(fields_of(row), FILE_COLUMNS) if row else None
                yield Row(number=number, values=row, file=normalised(file_name) if file_name else None)
    except (csv.Error, UnicodeError) as error:
        raise TableDamage(f"damaged ({error})") from error
    except OSError as error:
        raise TableDamage(f"cannot be read ({error.strerror})") from error


def normalised(file_name: object) -> str:
    """A path as tables of all systems write it, in the one way in which it is looked up. It is never opened."""
    text = unicodedata.normalize("NFC", str(file_name)[:4096].strip().replace("\\", "/"))
    return posixpath.normpath(text)


def _encoding(file: IO[bytes]) -> str:
    start = file.read(4)
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _json_rows(lines: IO[str]) -> Iterator[dict[str, Any] | None]:
    while line := lines.readline(LARGEST_METADATA_BYTES):
        if line.strip():
            yield parse_metadata(line)


def _csv_rows(lines: IO[str]) -> Iterator[dict[str, Any] | None]:
    header = lines.readline(LARGEST_METADATA_BYTES)
    # Spreadsheets of countries that write 1,5 separate columns by semicolons.
    delimiter = max(",;\t", key=header.count)
    names = next(csv.reader([header], delimiter=delimiter), [])
    if len(set(names)) < len(names):
        raise TableDamage("two columns have the same name")
    # Cells beyond the header, and rows with too few, make captions of other pictures' words: such rows are damaged.
    for cells in csv.reader(lines, delimiter=delimiter):
        if cells:
            yield dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None
