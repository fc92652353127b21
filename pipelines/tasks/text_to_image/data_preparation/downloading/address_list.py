"""Lists of pictures' addresses with captions: LAION's and others' Parquet, CSV, TSV and JSON lines."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.foreign.linked_folders import files_below
from pipelines.tasks.text_to_image.data_preparation.reading.labels import Fields, fields_of, first_value, fold_name
from pipelines.tasks.text_to_image.data_preparation.sources.assembly import CAPTION_COLUMNS
from pipelines.tasks.text_to_image.data_preparation.sources.caption_tables import TableDamage, read_table
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import readable_name
from pipelines.tasks.text_to_image.data_preparation.sources.parquet_source import plain_values

LIST_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
ADDRESS_COLUMNS = ("url", "image_url", "img_url", "photo_image_url", "photo_url", "link")
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class ListedPicture:
    """One row of a list."""

    address: str | None
    """Where the picture is; None if the row is damaged or names no place."""
    caption: str | None
    """As it is written in the list."""
    columns: Mapping[str, object]
    """All that the row says, its labels among it."""


def list_files(place: Path) -> list[Path]:
    """The files of a list: itself, or those in a folder by name. FileNotFoundError or ValueError if there is none."""
    if not place.exists():
        raise FileNotFoundError(f"There is no {place}. Expected a list of addresses: {', '.join(LIST_SUFFIXES)}.")
    files = files_below(place) or [place]
    found = [file for file in files if file.suffix.lower() in LIST_SUFFIXES and not file.name.startswith(".")]
    if not found:
        raise ValueError(f"{place} has no list of addresses. Expected {', '.join(LIST_SUFFIXES)}.")
    return found


def listed_pictures(file: Path, caption_column: str | None = None) -> Iterator[ListedPicture]:
    """All rows of a file in their order. TableDamage where it cannot be read further.

    ValueError if it has no such column of captions.
    """
    suffix = file.suffix.lower()
    rows = _parquet_rows(file) if suffix == ".parquet" else (row.values for row in read_table(file, ADDRESS_COLUMNS))
    is_checked = suffix == ".jsonl"  # whose rows may differ
    for values in rows:
        fields = fields_of(values or {})
        if values and not is_checked:
            _check_columns(values, file, caption_column)
            is_checked = True
        address = first_value(fields, ADDRESS_COLUMNS)
        yield ListedPicture(
            address=None if address is None else str(address).strip(),
            caption=_caption(fields, caption_column),
            columns={name: value for name, value in (values or {}).items() if not isinstance(value, bytes)},
        )


def _check_columns(columns: Collection[str], file: Path, caption_column: str | None) -> None:
    names, shown = {fold_name(name) for name in columns}, ", ".join(map(readable_name, columns))[:500]
    if names.isdisjoint(ADDRESS_COLUMNS):
        raise TableDamage(
            f"no column of addresses; its columns are {shown}; expected one of {', '.join(ADDRESS_COLUMNS)}: name it so"
        )
    if caption_column is not None and fold_name(caption_column) not in names:
        raise ValueError(f"{file} has no column {caption_column}; its columns are {shown}. Choose --caption-column.")


def _caption(fields: Fields, caption_column: str | None) -> str | None:
    value = first_value(fields, (fold_name(caption_column),) if caption_column else CAPTION_COLUMNS)
    return None if value is None else str(value)


def _parquet_rows(file: Path) -> Iterator[dict[str, object]]:
    try:
        with pq.ParquetFile(file) as parquet:
            if len(set(parquet.schema_arrow.names)) < len(parquet.schema_arrow.names):
                raise TableDamage("two columns have the same name")
            for batch in parquet.iter_batches(ROWS_AT_ONCE):
                values = {name: plain_values(batch.column(index)) for index, name in enumerate(batch.schema.names)}
                yield from ({name: column[row] for name, column in values.items()} for row in range(batch.num_rows))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TableDamage(f"damaged ({str(error)[:200]})") from error
