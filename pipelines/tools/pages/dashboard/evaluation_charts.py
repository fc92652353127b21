"""Evaluations over the run as curves, each with its interval as a band and what it stands on. Pure functions."""

from collections.abc import Sequence

import numpy as np

from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure
from pipelines.features.publishing.metrics.evaluation.held_out_losses import HeldOutRow, is_few
from pipelines.tools.pages.dashboard.charts import Chart
from pipelines.tools.pages.dashboard.history_columns import HistoryColumns
from pipelines.tools.pages.dashboard.hub_reading import HubView
from pipelines.tools.pages.text import short_number

TITLES = {"fid": "FID", "kid": "KID", "cmmd": "CMMD", "clip_score": "CLIPScore"}
"""The figures that are drawn, by the part of their name before an @; what comes after it are the features."""

ARROWS = {"lower": "\N{NO-BREAK SPACE}↓", "higher": "\N{NO-BREAK SPACE}↑"}
"""Which direction is better; not on a line of its own."""

MOST_CHARTS = 8


def evaluation_charts(view: HubView, shown: HistoryColumns, axis: str) -> list[Chart]:
    """Return the held-out loss and the figures of checkpoints in the shown part of the history, as far as there are."""
    if not len(shown):
        return []
    series = _series_by_name(view.figures)
    names = sorted(series, key=lambda name: (list(TITLES).index(_kind(name)), name))[:MOST_CHARTS]
    charts = [_held_out_chart(view.evaluations, shown, axis)]
    charts += [_figure_chart(series[name], shown, axis) for name in names]
    return [chart for chart in charts if len(chart.along)]


def _held_out_chart(evaluations: Sequence[HeldOutRow], shown: HistoryColumns, axis: str) -> Chart:
    rows = [
        (
            row["epoch"],
            row["loss"],
            *(row["loss"] if (end := row.get(name)) is None else end for name in ("low", "high")),
        )
        for row in evaluations
    ]
    number = evaluations[-1].get("num_records") if evaluations else None
    basis = "" if number is None else f"{number:,} records"
    return _chart(
        f"Held-out loss{ARROWS['lower']}", rows, shown, axis, unit="nats", basis=basis, is_few=is_few(number), digits=4
    )


def _figure_chart(series: Sequence[CheckpointFigure], shown: HistoryColumns, axis: str) -> Chart:
    newest, features = series[-1], series[-1].name.partition("@")[2]
    title = f"{TITLES[_kind(newest.name)]}{f' ({features})' if features else ''}{ARROWS.get(newest.better, '')}"
    rows = [(one.epoch, one.value, one.low, one.high) for one in series]
    return _chart(title, rows, shown, axis, unit="", basis=newest.basis, is_few=newest.is_few, digits=3)


def _chart(
    title: str,
    rows: Sequence[tuple],
    shown: HistoryColumns,
    axis: str,
    *,
    unit: str,
    basis: str,
    is_few: bool,
    digits: int,
) -> Chart:
    """Return the curve of some rows `(epoch, value, low, high)`."""
    epochs = shown.columns["epoch"]
    table = np.array([row for row in rows if epochs[0] <= row[0] <= epochs[-1]], dtype=np.float64).reshape(-1, 4)
    along = shown.columns[axis]
    return Chart(
        title=title,
        unit=unit,
        axis=axis,
        along=np.interp(table[:, 0], epochs, along),  # where the state was, not when its evaluation ended
        values=table[:, 1],
        interval=(table[:, 2], table[:, 3]),
        span=(float(along.min()), float(along.max())),
        from_zero=False,
        write=lambda value: short_number(float(f"{value:.{digits}g}")),
        has_marks=True,
        note=f"{basis}: too few for small differences" if is_few else basis,
        warns=is_few,
    )


def _series_by_name(figures: Sequence[CheckpointFigure]) -> dict[str, list[CheckpointFigure]]:
    """Return the figures to draw by name; those of other numbers of records than the newest do not compare with it."""
    found: dict[str, list[CheckpointFigure]] = {}
    for figure in figures:
        if _kind(figure.name) in TITLES:
            found.setdefault(figure.name, []).append(figure)
    return {
        name: [one for one in series if one.num_records == series[-1].num_records] for name, series in found.items()
    }


def _kind(name: str) -> str:
    return name.partition("@")[0]
