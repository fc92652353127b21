"""The contributions as files: one small Parquet file per month, and the counters to resume counting from."""

import json
from pathlib import Path

import pyarrow as pa

from hub_tools.atomic_files import write_text_whole
from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import COUNTERS_FILE
from pipelines.features.publishing.metrics.credit.contributions import Contribution, ContributionLedger, days_of_month
from pipelines.features.publishing.metrics.parquet_rows import read_rows, write_rows

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
        write_rows(rows, CONTRIBUTION_SCHEMA, folder / f"contributions-{month}.parquet")
    write_text_whole(folder / COUNTERS_FILE, json.dumps(ledger.state(), separators=(",", ":")) + "\n")


def read_contributions(folder: Path) -> ContributionLedger:
    """Return the ledger in a folder, an empty one if there is none. Raises ValueError for a damaged one."""
    days: dict[tuple[str, str], Contribution] = {}
    try:
        for path in sorted(folder.glob("contributions-*.parquet")):
            for row in read_rows(path, CONTRIBUTION_SCHEMA):
                key = row["day"], row["username"]
                days[key] = days.get(key, Contribution()).plus(row["samples"], row["seconds"])
        counters = folder / COUNTERS_FILE
        state = read_json(counters) if counters.exists() else None
    except (KeyError, TypeError, OSError, ValueError) as error:
        raise ValueError(f"The contributions in {folder} are damaged ({error}). Download them again.") from error
    return ContributionLedger(days=days) if state is None else ContributionLedger.from_state(state, days)
