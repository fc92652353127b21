"""Some rows of a column of a large row group, with the bytes of their pages alone; pyarrow reads only whole columns.

Where the pages of a column lie is in the file's page index, which `datasets` writes. Without one it is found page by
page from their headers, which tell rows only if the column has no lists. The pages are handed to pyarrow as if they
were the first ones of the column: it reads no more of a column than the rows that it is asked for.
"""

import io
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FIRST_BYTES_OF_PAGE = 2**13
"""Enough for the header of a page with statistics; one that is longer is read again with more."""

MOST_BYTES_OF_HEADER = 2**20
MOST_PAGES = 2**16
LARGEST_BLOCK_BYTES = 2**27
ROWS_COUNTED_TOGETHER = 64
STREAM_BUFFER_BYTES = 2**16
DICTIONARY_ENCODINGS = frozenset({2, 8})

ReadRange = Callable[[int, int], bytes]
"""Returns the file's bytes from the first place to just before the second one."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Where a data page is, with its header."""

    start: int
    stop: int
    first_row: int


@dataclass(kw_only=True)
class ColumnPages:
    """The data pages of a column of a row group, found as far as somebody needed them."""

    start: int
    """Of the column: its dictionary, if it has one, else its first page."""

    first_page: int
    stop: int
    num_rows: int
    index: tuple[int, int] | None
    """Where the page index of this column is."""

    found: list[Page] = field(default_factory=list)
    rows_found: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def covering(self, start: int, stop: int, read: ReadRange) -> list[Page]:
        """The pages that have the rows from `start` to just before `stop`."""
        with self._lock:
            if self.index is not None and not self.found:
                locations, _ = _read_struct(read(*self.index), 0)
                self.found = [Page(start=at[1], stop=at[1] + at[2], first_row=at[3]) for at in locations[1]]
                self.rows_found = self.num_rows
            while self.rows_found < stop:
                self._find_next(read)
        ends = [page.first_row for page in self.found[1:]] + [self.rows_found]
        return [page for page, end in zip(self.found, ends, strict=True) if page.first_row < stop and start < end]

    def _find_next(self, read: ReadRange) -> None:
        at = self.found[-1].stop if self.found else self.first_page
        header, length = _page_header(at, self.stop, read)
        data = header.get(5) or header.get(8)
        if data is None or header[3] < 0 or data[1] < 0 or len(self.found) >= MOST_PAGES:
            raise ValueError(f"there is no data page at byte {at}")
        self.found.append(Page(start=at, stop=at + length + header[3], first_row=self.rows_found))
        self.rows_found += data[1]


def column_pages(
    footer: bytes, metadata: pq.FileMetaData, group: int, names: tuple[str, ...]
) -> dict[str, ColumnPages]:
    """Where the pages of some columns of a row group are; `footer` is the file's, as it is stored."""
    row_group = metadata.row_group(group)
    stored = _read_struct(footer, 0)[0][4][group][1]
    found = {}
    for number, column in enumerate(stored):
        known = row_group.column(number)
        name = known.path_in_schema.partition(".")[0]
        if name in names:
            first, dictionary = known.data_page_offset, known.dictionary_page_offset
            start = first if dictionary is None else min(first, dictionary)
            found[name] = ColumnPages(
                start=start,
                first_page=first,
                stop=start + known.total_compressed_size,
                num_rows=row_group.num_rows,
                index=(column[4], column[4] + column[5]) if 4 in column and 5 in column else None,
            )
    return found


def read_rows(
    read: ReadRange, metadata: pq.FileMetaData, group: int, name: str, pages: ColumnPages, start: int, stop: int
) -> pa.Table:
    """The rows from `start` to just before `stop` of one column. pa.ArrowInvalid or ValueError if it is damaged."""
    wanted = pages.covering(start, stop, read)
    first, last = wanted[0], wanted[-1]
    content = read(first.start, last.stop)
    check_unpacked(content, 0, len(content))
    if any(_needs_dictionary(content, page.start - first.start) for page in wanted):
        content = read(pages.start, pages.first_page) + content
        check_unpacked(content, 0, pages.first_page - pages.start)
    # What pyarrow takes for the column's first rows are those of these pages.
    stream = _ColumnStart(pages.start, content, pages.stop)
    file = pq.ParquetFile(stream, metadata=metadata, buffer_size=STREAM_BUFFER_BYTES, pre_buffer=False)
    found = unpacked_rows(file, group, [name], stop - first.first_row).slice(start - first.first_row)
    if len(found) != stop - start:
        raise ValueError(f"{len(found)} rows of column {name} are there, expected {stop - start}")
    return found


def read_group(
    read: ReadRange, metadata: pq.FileMetaData, group: int, names: tuple[str, ...], num_bytes: int
) -> pa.Table:
    """Some columns of a row group of a file of `num_bytes`; ValueError if they would come to more than a block may."""
    known = [metadata.row_group(group).column(number) for number in range(metadata.num_columns)]
    spans = []
    for column in known:
        if column.path_in_schema.partition(".")[0] in names:
            places = (column.data_page_offset, column.dictionary_page_offset)
            start = min(place for place in places if place is not None)
            spans.append((start, start + column.total_compressed_size))
    start, stop = min((span[0] for span in spans), default=0), max((span[1] for span in spans), default=0)
    if not 0 <= start <= stop <= num_bytes or stop - start > LARGEST_BLOCK_BYTES:
        raise ValueError(f"its columns are said to be at bytes {start} to {stop}")
    content = read(start, stop)
    for first, end in spans:
        check_unpacked(content, first - start, end - start)
    file = pq.ParquetFile(_ColumnStart(start, content, num_bytes), metadata=metadata, pre_buffer=False)
    return unpacked_rows(file, group, names, metadata.row_group(group).num_rows)


def unpacked_rows(file: pq.ParquetFile, group: int, names: Sequence[str], num_rows: int) -> pa.Table:
    """The first rows of some columns, counted while they are unpacked: no footer is believed.

    ValueError if they come to more than a block may have.
    """
    batches, rows, num_bytes = [], 0, 0
    for batch in file.iter_batches(batch_size=ROWS_COUNTED_TOGETHER, row_groups=[group], columns=list(names)):
        batches.append(batch.slice(0, num_rows - rows))
        rows, num_bytes = rows + len(batches[-1]), num_bytes + batch.nbytes
        if num_bytes > LARGEST_BLOCK_BYTES:
            raise ValueError(
                f"its first {rows} rows unpack to {num_bytes} bytes, expected {LARGEST_BLOCK_BYTES} in all"
            )
        if rows >= num_rows:
            break
    return pa.Table.from_batches(batches, None if batches else file.schema_arrow).combine_chunks()


def check_unpacked(content: bytes, at: int, end: int) -> None:
    """Raise ValueError unless the pages of these bytes say that they unpack to what a block may have."""
    num_bytes = 0
    while at < end:
        header, length = _page_header(at, end, lambda start, stop: content[start:stop])
        num_bytes += header[2]
        if header[2] < 0 or header[3] < 0 or num_bytes > LARGEST_BLOCK_BYTES:
            raise ValueError(f"its pages unpack to {num_bytes} bytes, expected at most {LARGEST_BLOCK_BYTES}")
        at += length + header[3]


class _ColumnStart(io.RawIOBase):
    """A file of which there are only the bytes from a place on, and after them nothing."""

    def __init__(self, start: int, content: bytes, size: int) -> None:
        self._start, self._content, self._size, self._place = start, content, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        first = self._place - self._start
        found = self._content[first : None if size < 0 else first + size]
        self._place += len(found)
        return found


def _needs_dictionary(content: bytes, at: int) -> bool:
    header, _ = _read_struct(content, at)
    return (header[5][2] if 5 in header else header[8][4]) in DICTIONARY_ENCODINGS


def _page_header(at: int, end: int, read: ReadRange) -> tuple[dict[int, Any], int]:
    size = FIRST_BYTES_OF_PAGE
    while at < end and size <= MOST_BYTES_OF_HEADER:
        try:
            return _read_struct(read(at, min(end, at + size)), 0)
        except (IndexError, struct.error):
            size *= 8
    raise ValueError(f"there is no page at byte {at}")


def _read_struct(data: bytes, place: int) -> tuple[dict[int, Any], int]:
    """Decode a struct of Thrift's compact protocol: its fields by their numbers, and the place behind it."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[place]:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _read_integer(data, place)
        fields[number], place = _read_value(data, place, head & 15)
    return fields, place + 1


def _read_value(data: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true and false
        return kind == 1, place
    if kind == 3:
        return data[place], place + 1
    if kind in (4, 5, 6):
        return _read_integer(data, place)
    if kind == 7:
        return struct.unpack_from("<d", data, place)[0], place + 8
    if kind == 8:
        length, place = _read_varint(data, place)
        if place + length > len(data):
            raise IndexError(f"a text of {length} bytes ends behind byte {len(data)}")
        return data[place : place + length], place + length
    if kind == 9:
        return _read_list(data, place)
    if kind == 12:
        return _read_struct(data, place)
    raise ValueError(f"there is no value of kind {kind} in a Parquet file")


def _read_list(data: bytes, place: int) -> tuple[list[Any], int]:
    head, place = data[place], place + 1
    length, kind = head >> 4, head & 15
    if length == 15:
        length, place = _read_varint(data, place)
    values = []
    for _ in range(length):
        # In a list a truth value takes a byte.
        value, place = (data[place] == 1, place + 1) if kind in (1, 2) else _read_value(data, place, kind)
        values.append(value)
    return values, place


def _read_integer(data: bytes, place: int) -> tuple[int, int]:
    coded, place = _read_varint(data, place)
    return coded >> 1 ^ -(coded & 1), place


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, place = data[place], place + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError(f"there is no number at byte {place}")
