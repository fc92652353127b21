"""Credit for served candidates: what an auxiliary peer has drawn at servers for its own audits, and found right.

What servers say that they have drawn counts for nothing. Who draws right for an auditor that cannot be told from others
is credited with what it has drawn for that auditor: a sample of what it gives.
"""

import io
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.features.publishing.metrics.parquet_rows import read_rows

LONGEST_NAME = 96
MOST_USERS_OF_A_DAY = 256
"""In an open run names are free; of more of them those with the most candidates are kept."""

MOST_CANDIDATES = 10**12
SERVED_SCHEMA = pa.schema([("day", pa.string()), ("username", pa.string()), ("candidates", pa.int64())])

ServedDays = Mapping[tuple[str, str], int]
"""Audited candidates by day, such as `2026-11-21`, and user name."""


def served_file(month: str) -> str:
    """Return the name of a month's file, such as `2026-11`."""
    return f"served-{month}.parquet"


def day_of(now: float) -> str:
    """Return the day (UTC) of a time in seconds since 1970."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def with_credit(held: ServedDays, owed: ServedDays) -> dict[tuple[str, str], int]:
    """Return the credit after audits, in which users have drawn `owed` candidates right."""
    days = dict(held)
    for (day, user), number in owed.items():
        key = day, user[:LONGEST_NAME]
        days[key] = min(MOST_CANDIDATES, days.get(key, 0) + number)
    for day in {day for day, _ in owed}:
        users = sorted((key for key in days if key[0] == day), key=lambda key: (-days[key], key))
        for key in users[MOST_USERS_OF_A_DAY:]:
            del days[key]
    return days


def served_in(days: ServedDays, span: str, now: float) -> dict[str, int]:
    """Return each user's candidates in a span that ends now: `today`, `week` or `all`."""
    length = {"today": 0, "week": 6}.get(span)
    first = "" if length is None else day_of(now - 86_400.0 * length)
    users: Counter[str] = Counter()
    for (day, user), number in days.items():
        if day >= first:
            users[user] += number
    return dict(users)


def to_parquet(days: ServedDays) -> bytes:
    """Return the content of a month's file."""
    rows = [dict(day=day, username=user, candidates=number) for (day, user), number in sorted(days.items())]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=SERVED_SCHEMA), buffer, compression="snappy")
    return buffer.getvalue()


def read_served(*files: Path) -> dict[tuple[str, str], int]:
    """Return what months' files hold; rows that cannot be true are left out. Raises ValueError for a damaged file."""
    days: dict[tuple[str, str], int] = {}
    for path in files:
        try:
            rows = read_rows(path, SERVED_SCHEMA)
        except ValueError as error:
            raise ValueError(f"{path.name} is damaged ({error}). Delete it in the run's repository.") from error
        for row in rows:
            if row["day"] and row["username"] and 0 <= (row["candidates"] or 0) <= MOST_CANDIDATES:
                key = row["day"], row["username"][:LONGEST_NAME]
                days[key] = days.get(key, 0) + (row["candidates"] or 0)
    return days
