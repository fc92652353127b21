"""The losses on held-out records as a file, one row for each evaluated epoch, and in words."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pyarrow as pa

from hub_tools.counted import nats
from hub_tools.run_files import EVALUATIONS_FILE
from pipelines.features.publishing.metrics.parquet_rows import read_rows, write_rows

MOST_NATS = 700.0
LARGEST = 1e12
"""No figure of a run is larger, nor are times of the coming centuries."""

FEWEST_RECORDS = 100
"""With fewer held-out records, an evaluation tells large differences only."""

DIGEST = re.compile(r"[0-9a-f]{64}")

EVALUATION_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("loss", pa.float64()),
        ("num_records", pa.int64()),
        ("time", pa.float64()),
        ("seconds", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("weights", pa.string()),
    ]
)
"""`low` and `high` are the ends of the loss's interval of 95 % over records, `weights` is the digest of the weights:
null in rows of older versions."""

LATER_COLUMNS = ("low", "high", "weights")


class HeldOutRow(TypedDict):
    """A row of `EVALUATION_SCHEMA`."""

    epoch: int
    loss: float
    num_records: int
    time: float
    seconds: float
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    weights: NotRequired[str | None]


def perplexity(nats: float) -> float:
    """Return the perplexity that belongs to a mean loss in nats; no float is above e^700 or so."""
    return math.exp(min(nats, MOST_NATS))


def is_few(num_records: float | None) -> bool:
    """Return whether a figure stands on too few records to tell small differences; False where that is not known."""
    return num_records is not None and num_records < FEWEST_RECORDS


def held_out_loss(evaluation: HeldOutRow) -> str:
    """Return an evaluation's loss for people: its epoch, interval, and the number of records that it stands on."""
    number, low, high = evaluation.get("num_records"), evaluation.get("low"), evaluation.get("high")
    interval = "" if low is None or high is None else f" (95 % interval {nats(low)} to {nats(high)})"
    few = ": too few to tell small differences" if is_few(number) else ""
    records = "" if number is None else f", on {number:,} records{few}"
    return f"{nats(evaluation['loss'])}{interval} at epoch {evaluation['epoch']:,}{records}"


def write_evaluations(evaluations: Sequence[HeldOutRow], folder: Path) -> Path:
    """Write the losses on held-out records, one row per evaluation."""
    return write_rows(list(evaluations), EVALUATION_SCHEMA, folder / EVALUATIONS_FILE)


def read_evaluations(folder: Path) -> list[HeldOutRow]:
    """Return the evaluations in a folder, without impossible ones; none if there is no such file.

    Raises:
        ValueError: the file is no such file.
    """
    path = folder / EVALUATIONS_FILE
    if not path.exists():
        return []
    rows = read_rows(path, EVALUATION_SCHEMA, optional=LATER_COLUMNS)
    return [row | _later(row) for row in rows if _is_possible(row)]


def _is_possible(row: Mapping[str, Any]) -> bool:
    values = [value for name, value in row.items() if name not in LATER_COLUMNS]
    return all(value is not None and abs(value) < LARGEST for value in values) and row["epoch"] > 0


def _later(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what older rows lack; null where it cannot be true."""
    low, high, weights = (row[name] for name in LATER_COLUMNS)
    if low is None or high is None or not -LARGEST < low <= row["loss"] <= high < LARGEST:
        low = high = None
    return dict(low=low, high=high, weights=weights if weights and DIGEST.fullmatch(weights) else None)
