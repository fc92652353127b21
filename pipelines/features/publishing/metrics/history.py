"""The run's history as files that are cheap to append to: Parquet shards of epochs, and a summary for pages.

A shard holds `EPOCHS_PER_SHARD` epochs, so that publishing rewrites one small file, however long the run. The
summary is JSON of at most `MAX_SUMMARY_POINTS` points and needs no library to be read.
"""

import contextlib
import itertools
import json
import logging
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from hub_tools.checks import is_number
from hub_tools.foreign.json_texts import parse_json, read_json
from hub_tools.run_files import METRICS_FOLDER, OLD_METRICS_FILE
from pipelines.features.publishing.metrics.epoch_summary import EpochSummary
from pipelines.features.publishing.metrics.evaluation.held_out_losses import LARGEST, HeldOutRow
from pipelines.features.publishing.metrics.parquet_rows import read_rows, write_rows
from pipelines.features.publishing.metrics.run_state import RunCondition, condition_by
from pipelines.features.publishing.metrics.stalls import usual_seconds
from pipelines.features.publishing.repository.run_bucket import MAX_METRICS_BYTES, RunBucket
from pipelines.features.publishing.repository.snapshot import RunSnapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")

EPOCHS_PER_SHARD = 1000
MAX_SUMMARY_POINTS = 300
SUMMARY_FORMAT_VERSION = 1

EPOCH_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("time", pa.float64()),
        ("loss", pa.float64()),
        ("num_peers", pa.int32()),
        ("samples_per_second", pa.float64()),
        ("share_averaged", pa.float64()),
        ("epoch_seconds", pa.float64()),
        ("round_seconds", pa.float64()),
        ("bytes_sent", pa.int64()),
        ("num_rounds", pa.int64()),
        ("num_refused_gradients", pa.int64()),
        ("suspects", pa.string()),
    ]
)
"""`suspects` is JSON: an object of peers and the number of their accusers."""

SUMMARY_COLUMNS = tuple(EPOCH_SCHEMA.names[: EPOCH_SCHEMA.names.index("bytes_sent")])
"""What pages draw."""

SUMMARY_OF_EVALUATIONS = ("epoch", "loss", "time", "low", "high", "num_records")


def append_point(history: list[EpochSummary], summary: EpochSummary | None) -> None:
    """Append a summary to the history in place; a newer view of the same epoch replaces the older.

    After a fall-back to an older checkpoint, the lost epochs leave the history too.
    """
    if summary is None:
        return
    while history and history[-1]["epoch"] >= summary["epoch"]:
        history.pop()
    seconds = 0.0
    if history:
        num_epochs = summary["epoch"] - history[-1]["epoch"]
        seconds = max(0.0, summary["time"] - history[-1]["time"]) / num_epochs
    history.append({**summary, "epoch_seconds": seconds})


def merge_histories(older: Iterable[EpochSummary], newer: Iterable[EpochSummary]) -> list[EpochSummary]:
    """Return the points of both by epoch; where both have one, that of `newer`."""
    points = {point["epoch"]: point for history in (older, newer) for point in history}
    return [points[epoch] for epoch in sorted(points)]


def shard_name(epoch: int) -> str:
    """Return the name of the file that holds an epoch."""
    return f"epochs-{(epoch - 1) // EPOCHS_PER_SHARD:05d}.parquet"


def write_history(history: Sequence[EpochSummary], folder: Path, from_epoch: int = 0) -> list[Path]:
    """Write the shards that hold epochs from `from_epoch` on; return the files."""
    shards: dict[str, list[dict[str, object]]] = {}
    first = 1 + (max(from_epoch, 1) - 1) // EPOCHS_PER_SHARD * EPOCHS_PER_SHARD
    for point in history:
        if point["epoch"] >= first:
            shards.setdefault(shard_name(point["epoch"]), []).append(_row(point))
    return [write_rows(rows, EPOCH_SCHEMA, folder / name) for name, rows in shards.items()]


def read_history_files(folder: Path) -> list[EpochSummary]:
    """Return the points of all shards in a folder, by epoch, without those that are impossible."""
    points = [_point(row) for path in sorted(folder.glob("epochs-*.parquet")) for row in read_rows(path, EPOCH_SCHEMA)]
    return merge_histories([], [point for point in points if _is_possible(point)])


def summarise_history(history: Sequence[Mapping[str, Any]], max_points: int = MAX_SUMMARY_POINTS) -> dict[str, list]:
    """Return the history's columns in at most `max_points` points: means over stretches of equally many points.

    `epoch` and `time` are those of a stretch's last point, `share_averaged` its smallest.
    """
    size = max(1, math.ceil(len(history) / max_points))
    # The newest stretch is complete and the oldest may be short: people look at the end of a curve.
    first = len(history) % size
    bounds = ([0] if first else []) + list(range(first, len(history) + 1, size))
    stretches = [history[start:end] for start, end in itertools.pairwise(bounds)]
    reduce = {"epoch": max, "time": max, "share_averaged": min}
    return {
        name: [
            _rounded(reduce.get(name, statistics.fmean)([point[name] for point in stretch])) for stretch in stretches
        ]
        for name in SUMMARY_COLUMNS
    }


def summary_json(
    *,
    facts: Mapping[str, object],
    history: Sequence[EpochSummary],
    evaluations: Sequence[HeldOutRow],
    leaderboard: Sequence[Mapping[str, object]],
    num_contributors: int,
    now: float,
    peers: Sequence[tuple[str, float]] = (),
) -> str:
    """Return the text of `summary.json`; `facts` are the run's own figures. User names in it are untrusted text.

    `peers` are the users that trained in the newest epoch, with the samples per second that each has claimed.
    """
    last = history[-1] if history else None
    # Counted from the end: the newest is always included.
    thinned = evaluations[:: -max(1, math.ceil(len(evaluations) / MAX_SUMMARY_POINTS))][::-1]
    values = dict(
        format_version=SUMMARY_FORMAT_VERSION,
        updated=now,
        **facts,
        newest=last and {name: _rounded(value) for name, value in last.items()},
        history=summarise_history(history),
        usual_epoch_seconds=_rounded(usual_seconds(point["epoch_seconds"] for point in history)),
        evaluations={name: [_rounded(row.get(name)) for row in thinned] for name in SUMMARY_OF_EVALUATIONS},
        leaderboard=list(leaderboard),
        num_contributors=num_contributors,
        peers=[dict(username=user, samples_per_second=_rounded(speed)) for user, speed in peers],
    )
    return json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"


def _row(point: EpochSummary) -> dict[str, object]:
    return {**point, "suspects": json.dumps(point.get("suspects") or {}, sort_keys=True)}


def _point(row: Any) -> EpochSummary:
    row["suspects"] = parse_json(row["suspects"] or "{}")
    return row


def _is_possible(row: Mapping[str, Any]) -> bool:
    numbers = [value for value in row.values() if not isinstance(value, dict)]
    shown = [row[name] for name in SUMMARY_COLUMNS]
    return all(map(is_number, numbers)) and all(abs(value) < LARGEST for value in shown) and row["epoch"] > 0


def _rounded(value: T) -> T | float:
    return float(f"{value:.9g}") if isinstance(value, float) and value < 1e8 else value


@contextlib.contextmanager
def published_metrics(snapshot: RunSnapshot) -> Iterator[Path]:
    """Yield the folder of the run's newest metrics: those in its bucket, or the repository's if these are newer.

    It lies there within the block. A bucket that cannot be read is named in the log, and done without.
    """
    taken = snapshot.download_matching(f"{METRICS_FOLDER}/*", most_weights_bytes=MAX_METRICS_BYTES)
    committed = taken / METRICS_FOLDER
    with contextlib.ExitStack() as stack:
        newest = committed
        if snapshot.run.bucket:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dalle-collab-metrics-")))
            try:
                if _newest_epoch(RunBucket(snapshot.run).get_metrics(folder)) >= _newest_epoch(committed):
                    newest = folder
            except (OSError, ValueError) as error:
                logger.warning("Metrics are those of %s: %s", snapshot.repository, error)
        yield newest


def read_history(snapshot: RunSnapshot) -> list[EpochSummary]:
    """Return the run's published history, one point per epoch; empty if none was published.

    Raises:
        ValueError: it is damaged.
    """
    with published_metrics(snapshot) as folder:
        return read_history_files(folder) or read_old_history(snapshot)


def read_condition(snapshot: RunSnapshot, *, now: float) -> RunCondition:
    """Return what a run is doing, by what it has published; `now` is in seconds since 1970.

    Raises:
        ValueError: what it has published is damaged.
    """
    return condition_by(snapshot, read_history(snapshot), now=now)


def read_old_history(snapshot: RunSnapshot) -> list[EpochSummary]:
    """Return the history of a run older than sharded histories; empty if there is none."""
    path = snapshot.download(OLD_METRICS_FILE)
    rows = [] if path is None else read_json(path)
    if not isinstance(rows, list):
        raise ValueError(f"{OLD_METRICS_FILE} of {snapshot.repository} holds no list of epochs.")
    points = [row for row in rows if isinstance(row, dict) and row.keys() >= set(SUMMARY_COLUMNS) and _is_possible(row)]
    return cast("list[EpochSummary]", points)


def _newest_epoch(folder: Path) -> int:
    return max((point["epoch"] for point in read_history_files(folder)), default=0)
