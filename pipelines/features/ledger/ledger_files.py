"""The ledger in the run's repository and in an anchor's folder: its state, and every span that was ever booked."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hub_tools.atomic_files import write_text_whole, written_whole
from hub_tools.foreign.json_texts import read_json
from pipelines.core.run.spans import Span

STATE_FILE = "ledger.json"
FILE_FORMAT = 1
EPOCHS_PER_FILE = 1000


class Booking(NamedTuple):
    """Records that a peer's gradient brought into the round of an epoch."""

    epoch: int
    span: Span
    name: str
    """The peer; see `sender_name`."""

    user: str


_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("pass_number", pa.int32()),
        ("shard", pa.int32()),
        ("group", pa.int32()),
        ("start", pa.int32()),
        ("stop", pa.int32()),
        ("peer", pa.string()),
        ("user", pa.string()),
    ]
)


def file_name(epoch: int) -> str:
    """The file with the bookings of an epoch."""
    return f"ledger-{epoch // EPOCHS_PER_FILE:06d}.parquet"


def write_bookings(folder: Path, bookings: Sequence[Booking], *, since: int) -> None:
    """Write the files with bookings of epoch `since` and later, each whole; `bookings` are all of those files'."""
    first = since // EPOCHS_PER_FILE
    by_file: dict[str, list[Booking]] = {}
    for booking in bookings:
        if booking.epoch // EPOCHS_PER_FILE >= first:
            by_file.setdefault(file_name(booking.epoch), []).append(booking)
    for name, rows in by_file.items():
        columns = [[row.epoch, *row.span, row.name, row.user] for row in sorted(rows)]
        table = pa.table([pa.array(column) for column in zip(*columns, strict=True)], names=_SCHEMA.names).cast(_SCHEMA)
        with written_whole(folder / name) as temporary:
            pq.write_table(table, temporary, compression="zstd")


def read_bookings(folder: Path) -> list[Booking]:
    """All bookings in a folder, by epoch. ValueError naming the file if one is not a ledger's."""
    found: list[Booking] = []
    for path in sorted(folder.glob("ledger-*.parquet")):
        try:
            table = pq.read_table(path).select(_SCHEMA.names).cast(_SCHEMA)
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, KeyError) as error:
            raise ValueError(f"{path.name} is not a ledger of this version: {error}") from error
        rows = zip(*(table[name].to_pylist() for name in _SCHEMA.names), strict=True)
        found += [Booking(epoch, Span(*span), name, user) for epoch, *span, name, user in rows]
    return found


def write_state(path: Path, state: Mapping[str, object]) -> None:
    """Write the ledger's state, whole or not at all."""
    write_text_whole(path, json.dumps(dict(format=FILE_FORMAT, **state)) + "\n")


def read_state(path: Path) -> dict[str, Any] | None:
    """The state that `write_state` wrote; None if there is none. ValueError if it is damaged or of another version."""
    if not path.is_file():
        return None
    try:
        state = read_json(path)
        if state.pop("format") != FILE_FORMAT:
            raise ValueError("another version's format")
        if not all(isinstance(state[name], list) for name in ("passes", "finished_passes", "accounts")):
            raise ValueError("expected lists of passes and accounts")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} is not a ledger of this version ({error}). Delete it: its leases are lost."
        ) from error
    return state


def overlaps(bookings: Iterable[Booking]) -> list[tuple[Booking, Booking]]:
    """Pairs of bookings that hold the same record of the same pass."""
    found: list[tuple[Booking, Booking]] = []
    by_place = sorted(bookings, key=lambda booking: (booking.span, booking.epoch))
    last: Booking | None = None
    for booking in by_place:
        if last is not None and last.span.block == booking.span.block and booking.span.start < last.span.stop:
            found.append((last, booking))
        if last is None or last.span.block != booking.span.block or booking.span.stop > last.span.stop:
            last = booking
    return found
