"""What peers signed of their gradients, in the run's repository and in an anchor's folder: that of the last epochs."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.atomic_files import written_whole
from pipelines.core.run.spans import Span
from pipelines.features.ledger.gradient_sketch import NUM_SUMS, Sketch

GRADIENTS_FILE = "gradients.parquet"
MOST_KEPT = 20_000
"""Rows of the file, which is some megabytes; older ones are left out."""


class SignedGradient(NamedTuple):
    """What one peer signed of some batches; see `batch_gradients`."""

    epoch: int
    """Of the round that averaged it."""

    name: str
    """The peer; see `sender_name`."""

    spans: tuple[Span, ...]
    num_batches: int
    model_epoch: int
    sketch: Sketch
    user: str


_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("peer", pa.string()),
        ("spans", pa.list_(pa.list_(pa.int32(), len(Span._fields)))),
        ("num_batches", pa.int32()),
        ("model_epoch", pa.int64()),
        ("sketch", pa.list_(pa.float64(), NUM_SUMS)),
        ("user", pa.string()),
    ]
)


def newest(gradients: Iterable[SignedGradient]) -> list[SignedGradient]:
    """Each of them once, by epoch: as many of the newest as are kept."""
    return sorted(set(gradients))[-MOST_KEPT:]


def write_gradients(folder: Path, gradients: Iterable[SignedGradient]) -> None:
    """Write the file, whole or not at all."""
    rows = [dict(zip(_SCHEMA.names, gradient, strict=True)) for gradient in gradients]
    with written_whole(folder / GRADIENTS_FILE) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), temporary, compression="zstd")


def read_gradients(folder: Path) -> list[SignedGradient]:
    """What `write_gradients` wrote; nothing if there is no such file. ValueError if it is damaged."""
    if not (folder / GRADIENTS_FILE).is_file():
        return []
    try:
        rows = pq.read_table(folder / GRADIENTS_FILE).select(_SCHEMA.names).cast(_SCHEMA).to_pylist()
        return [_signed_gradient(row) for row in rows]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{GRADIENTS_FILE} is not one of this version: {error}") from error


def _signed_gradient(row: dict) -> SignedGradient:
    spans = tuple(Span(*map(int, span)) for span in row["spans"])
    if not spans or row["num_batches"] < 1 or not all(map(math.isfinite, row["sketch"])):
        raise ValueError("a gradient without records, batches or finite values")
    fields = row | dict(name=row["peer"], spans=spans, sketch=tuple(row["sketch"]))
    return SignedGradient(**{name: fields[name] for name in SignedGradient._fields})
