"""The run's history as columns, cut to a window and thinned to one point per pixel. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from hub_tools.checks import is_number
from pipelines.features.publishing.metrics.evaluation.held_out_losses import LARGEST
from pipelines.features.publishing.metrics.history import MAX_SUMMARY_POINTS, SUMMARY_COLUMNS

AXES = ("epoch", "time")
CLOCK_SLACK_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class HistoryColumns:
    """One array per column, all (points,) float64, by epoch."""

    columns: Mapping[str, np.ndarray]
    num_impossible: int = 0
    """Points left out because they are impossible."""

    @classmethod
    def from_points(cls, points: Sequence[Mapping[str, object]], now: float) -> Self:
        """Return the columns of points as `metrics.history` reads them; `now` is in seconds since 1970."""
        rows = [[point[name] for name in SUMMARY_COLUMNS] for point in points]
        table = np.array(rows, dtype=np.float64).reshape(len(points), len(SUMMARY_COLUMNS))  # (points, columns)
        with np.errstate(invalid="ignore"):
            is_possible = (np.isfinite(table) & (table >= 0) & (table < LARGEST)).all(axis=1)
            is_possible &= (table[:, 0] > 0) & (table[:, 1] < now + CLOCK_SLACK_SECONDS)
        kept = table[is_possible]
        return cls(
            columns={name: kept[:, index] for index, name in enumerate(SUMMARY_COLUMNS)},
            num_impossible=int((~is_possible).sum()),
        )

    @classmethod
    def from_summary(cls, summary: object, now: float) -> Self:
        """Return the columns of a run's `summary.json`, which is a stranger's; raises ValueError for anything else."""
        columns = summary.get("history") if isinstance(summary, dict) else None
        columns = [columns.get(name) for name in SUMMARY_COLUMNS] if isinstance(columns, dict) else [None]
        if not all(isinstance(column, list) and len(column) <= MAX_SUMMARY_POINTS for column in columns):
            raise ValueError("Its summary has no history that can be read.")
        rows = [dict(zip(SUMMARY_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]
        return cls.from_points([row for row in rows if all(map(is_number, row.values()))], now)

    def __len__(self) -> int:
        return len(self.columns["epoch"])

    @property
    def newest_epoch(self) -> int:
        """Epoch of the last point, 0 without one."""
        return int(self.columns["epoch"][-1]) if len(self) else 0

    def followed_by(self, newer: "HistoryColumns") -> "HistoryColumns":
        """Return these points and those of `newer` that come after them."""
        is_new = newer.columns["epoch"] > self.newest_epoch
        joined = {name: np.concatenate([self.columns[name], newer.columns[name][is_new]]) for name in SUMMARY_COLUMNS}
        return HistoryColumns(columns=joined, num_impossible=self.num_impossible + newer.num_impossible)

    def window(self, axis: str, first_percent: float, last_percent: float) -> "HistoryColumns":
        """Return the points between two shares of the axis, in percent of its length; invalid shares are corrected."""
        if not len(self):
            return self
        first, last = sorted(min(100.0, max(0.0, float(share))) for share in (first_percent, last_percent))
        along = self.columns[axis]
        low, length = along.min(), along.max() - along.min()
        # A window always shows something: at least one percent.
        last = max(last, min(100.0, first + 1.0))
        first = min(first, last - 1.0)
        inside = (along >= low + length * first / 100) & (along <= low + length * last / 100)
        columns = {name: values[inside] for name, values in self.columns.items()}
        return HistoryColumns(columns=columns, num_impossible=self.num_impossible)

    def shares(self, axis: str, low: float, high: float) -> tuple[float, float]:
        """Return the shares of the axis, in percent with one digit, between which [low, high] lies; see `window`."""
        along = self.columns[axis]
        if not len(along) or not along.max() > along.min():
            return 0.0, 100.0
        first, last = (1000 * (place - along.min()) / (along.max() - along.min()) for place in sorted((low, high)))
        first, last = (min(1000.0, max(0.0, float(share))) for share in (first, last))
        return math.floor(first) / 10, math.ceil(last) / 10


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """A curve in few points: the smallest, mean and largest value of each interval of its axis."""

    along: np.ndarray
    """(buckets,) mean place on the axis."""

    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray


def thin_out(along: np.ndarray, values: np.ndarray, num_buckets: int) -> Buckets:
    """Return a curve in at most `num_buckets` points without losing a spike: low and high are the true extremes."""
    if not len(along):
        return Buckets(along=along, low=values, mean=values, high=values)
    order = np.argsort(along, kind="stable")
    along, values = along[order], values[order]
    length = along[-1] - along[0]
    places = np.zeros(len(along), dtype=np.int64)
    if length > 0:
        places = np.minimum(((along - along[0]) / length * num_buckets).astype(np.int64), num_buckets - 1)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    counts = np.diff(starts, append=len(along))
    return Buckets(
        along=np.add.reduceat(along, starts) / counts,
        low=np.minimum.reduceat(values, starts),
        mean=np.add.reduceat(values, starts) / counts,
        high=np.maximum.reduceat(values, starts),
    )
