"""Parquet files with pictures in them: img2dataset's `parquet` output, and what `datasets` writes."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.counted import counted
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import readable_name
from pipelines.tasks.text_to_image.data_preparation.sources.picture_columns import (
    find_image_column,
    is_wanted,
    sample_of_row,
)
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, SourceDamage

ROWS_AT_ONCE = 16
"""Rows in memory, of at most 64 MiB each; their row group may be much larger."""
READ_BYTES = 2**20


class ParquetSource:
    """A Parquet file whose rows have a picture's bytes and a caption."""

    def __init__(self, path: Path, reading: ReadingOptions | None = None, name: str | None = None):
        self.path = path
        self.reading = reading or ReadingOptions()
        self.name = name or readable_name(path.name)
        self.num_bytes = path.stat().st_size if path.exists() else 0  # a link that leads nowhere is damage

    def has_pictures(self) -> bool:
        """Whether a column holds pictures; True for a damaged file, so that its damage is reported."""
        try:
            with self._open() as file:
                return _image_column(file.schema_arrow, self.reading, self.name) is not None
        except (pa.ArrowException, OSError):
            return True

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All rows from `begin` on; those of a damaged row group are lost, and counted."""
        number = 0
        try:
            with self._open() as file:
                names = file.schema_arrow.names
                column = _image_column(file.schema_arrow, self.reading, self.name)
                if column is None or len(set(names)) < len(names):
                    raise OSError("no column of pictures" if column is None else "two columns have the same name")
                wanted = [name for name in names if name == column or is_wanted(name, self.reading)]
                for group in range(file.num_row_groups):
                    end = number + file.metadata.row_group(group).num_rows
                    if end < begin:
                        number = end
                        continue
                    for row in _rows(file, group, wanted):
                        if number >= begin:
                            yield sample_of_row(row, number, self.name, column, self.reading)
                        number += 1
                    if number < end:
                        reason = f"{counted(end - number, 'row')} of row group {group} cannot be read"
                        yield from (self._lost(row) for row in range(max(begin, number), end))
                        number = end
                        yield SourceDamage(source=self.name, reason=reason, num_samples_read=number)
        except (pa.ArrowException, OSError) as error:
            yield SourceDamage(source=self.name, reason=_short(error), num_samples_read=number)

    def _open(self) -> pq.ParquetFile:
        # Pages are read one after the other: a whole row group of pictures may be gigabytes.
        return pq.ParquetFile(self.path, buffer_size=READ_BYTES, pre_buffer=False)

    def _lost(self, number: int) -> CaptionImage:
        return CaptionImage(
            key=str(number),
            source=self.name,
            caption=None,
            image_bytes=None,
            fault=DropReason.UNREADABLE_FILE,
            fault_detail="damaged row group",
        )


def _rows(file: pq.ParquetFile, group: int, columns: list[str]) -> Iterator[dict]:
    """The rows of a row group, up to damage."""
    try:
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns, use_threads=False):
            values = {name: plain_values(batch.column(name)) for name in batch.schema.names}
            yield from ({name: column[row] for name, column in values.items()} for row in range(batch.num_rows))
    except (pa.ArrowException, OSError, ValueError):
        return


def plain_values(column: pa.Array) -> list:
    """A column's values; of texts, bytes that are no UTF-8 become lone surrogates, by which they are known later.

    Nothing for times that no calendar has, and the like.
    """
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(is_text(column.type) for is_text in kinds):
        try:
            return column.to_pylist()
        except (pa.ArrowException, ArithmeticError, ValueError, LookupError):
            return [None] * len(column)
    texts = column.cast(pa.large_binary()).to_pylist()
    return [None if text is None else text.decode("utf-8", "surrogateescape") for text in texts]


def _image_column(schema: pa.Schema, reading: ReadingOptions, place: str) -> str | None:
    of_pictures = [field.name for field in schema if _can_hold_pictures(field.type)]
    return find_image_column(schema.names, of_pictures, reading, place)


def _can_hold_pictures(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _short(error: Exception) -> str:
    return f"damaged ({str(error).splitlines()[0][:200] if str(error) else type(error).__name__})"
