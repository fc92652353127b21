"""The contributions as files: one small Parquet file per month, and the counters to resume counting from."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.atomic_files import write_text_whole, written_whole
from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import COUNTERS_FILE
from pipelines.training.metrics.credit.contributions import Contribution, ContributionLedger, days_of_month

CONTRIBUTION_SCHEMA = pa.schema(
    [("day", pa.string()), ("username", pa.string()), ("samples", pa.int64()), ("seconds", pa.float64())]
)


def write_contributions(ledger: ContributionLedger, folder: Path) -> None:
    """Write every month's file and the counters; unchanged files keep the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for month in sorted({day[:7] for day, _ in ledger.days}):
        rows = [
            dict(day=day, username=user, samples=value.samples, seconds=value.seconds)
            for (day, user), value in days_of_month(ledger.days, month)
        ]
        table = pa.Table.from_pylist(rows, schema=CONTRIBUTION_SCHEMA)
        with written_whole(folder / f"contributions-{month}.parquet") as temporary:
            pq.write_table(table, temporary, compression="snappy")
    write_text_whole(folder / COUNTERS_FILE, json.dumps(ledger.state(), separators=(",", ":")) + "\n")


def read_contributions(folder: Path) -> ContributionLedger:
    """Return the ledger in a folder, an empty one if there is none. Raises ValueError for a damaged one."""
    days: dict[tuple[str, str], Contribution] = {}
    try:
        for path in sorted(folder.glob("contributions-*.parquet")):
            for row in pq.read_table(path).select(CONTRIBUTION_SCHEMA.names).cast(CONTRIBUTION_SCHEMA).to_pylist():
                key = row["day"], row["username"]
                days[key] = days.get(key, Contribution()).plus(row["samples"], row["seconds"])
        state = _read_json(folder / COUNTERS_FILE)
    except (pa.ArrowException, KeyError, TypeError, OSError, ValueError) as error:
        raise ValueError(f"The contributions in {folder} are damaged ({error}). Download them again.") from error
    return ContributionLedger(days=days) if state is None else ContributionLedger.from_state(state, days)


def _read_json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None
