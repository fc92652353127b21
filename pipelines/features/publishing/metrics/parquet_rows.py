"""Small tables of a run as Parquet files: written whole, read back with exactly the columns of a schema."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.atomic_files import written_whole

LARGEST_FILE_BYTES = 16 * 2**20
MOST_ROWS = 100_000
"""Files come from strangers; those of a run are far smaller."""


def write_rows(rows: Sequence[Mapping[str, object]], schema: pa.Schema, path: Path) -> Path:
    """Write rows; columns that a row lacks are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary:
        # Snappy is the only compression that every Parquet reader for browsers has built in.
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary, compression="snappy")
    return path


def read_rows(path: Path, schema: pa.Schema, *, optional: Collection[str] = ()) -> list[Any]:
    """Return the rows of a file, dictionaries; columns named in `optional` are null where the file has none.

    Raises:
        ValueError: it is no Parquet file, lacks a column, or is larger than any run's.
    """
    try:
        num_bytes, num_rows = path.stat().st_size, pq.read_metadata(path).num_rows
        if num_bytes > LARGEST_FILE_BYTES or num_rows > MOST_ROWS:
            raise ValueError(f"{path.name} has {num_bytes:,} bytes and {num_rows:,} rows, more than any run's.")
        table = pq.read_table(path)
        for field in schema:
            if field.name in optional and field.name not in table.column_names:
                table = table.append_column(field, pa.nulls(len(table), field.type))
        return table.select(schema.names).cast(schema).to_pylist()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ValueError(f"{path.name} is not a metrics file of this run ({error}). Download it again.") from error
