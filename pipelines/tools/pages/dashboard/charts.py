"""Curves as SVG: a page of 30 000 epochs ships a few hundred points per curve. Pure functions.

The picture stretches with the page; labels are HTML beside it, so that they keep their size on a phone.
"""

import datetime
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hub_tools.printing.marked_up import escaped
from pipelines.tools.pages.dashboard.history_columns import Buckets, thin_out
from pipelines.tools.pages.text import short_number

WIDTH, HEIGHT = 1000, 200
NUM_BUCKETS = 300
NUM_STRIPS = 60
"""Places that show their values under the pointer."""

MAX_DOTS = 150
TIME_STEPS = (60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400, 7 * 86_400, 30 * 86_400)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What one picture shows."""

    title: str
    unit: str
    axis: str
    """`epoch` or `time`: the horizontal axis."""

    along: np.ndarray
    """(points,) places on the axis."""

    values: np.ndarray
    """(points,)"""

    dots: tuple[np.ndarray, np.ndarray] | None = None
    """Places and values of individual marks over the curve."""

    dots_title: str = ""
    from_zero: bool = True
    write: Callable[[float], str] = short_number
    """Formats a value."""

    write_level: Callable[[float], str] | None = None
    """Formats a round number beside the axis; None: as `write` does."""

    interval: tuple[np.ndarray, np.ndarray] | None = None
    """(points,) lower and upper ends around the values: the band; None: the band shows what thinning has joined."""

    span: tuple[float, float] | None = None
    """The part of the axis that is shown; None: from the first point to the last."""

    has_marks: bool = False
    """Whether each point is marked: there are few."""

    counts_things: bool = False
    """Whether the axis has whole numbers alone."""

    note: str = ""
    """What the values stand on."""

    warns: bool = False
    """Whether the note is a warning."""


def chart_html(chart: Chart) -> str:
    """Return a figure with the curve, its axes and the values under the pointer; a sentence if there is no curve."""
    note = f'<p class="{"few" if chart.warns else "basis"}">{escaped(chart.note)}</p>' if chart.note else ""
    head = f"<figcaption><b>{escaped(chart.title)}</b><span>{escaped(_newest(chart))}</span></figcaption>{note}"
    if not len(chart.along):
        return f'<figure class="chart">{head}<p class="empty">Nothing to show yet.</p></figure>'
    curve = _curve(chart)
    across, up = _Scale(*_axis_range(chart), WIDTH), _Scale(*_value_range(chart, curve), HEIGHT)
    marks = _marks(curve, across, up) if chart.has_marks else _dots(chart, across, up)
    levels = [level for level in nice_ticks(up.low, up.high, 4) if not chart.counts_things or level == int(level)]
    lines = "".join(f'<path class="level" d="M0 {_y(up, level)}H{WIDTH}"/>' for level in levels)
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escaped(_said(chart))}">'
        f"{lines}{_band(curve, across, up)}{_line(curve, across, up)}{marks}{_strips(chart, curve, across)}</svg>"
    )
    ys = "".join(
        _label("bottom", up.place(level) / HEIGHT, (chart.write_level or chart.write)(level)) for level in levels
    )
    xs = "".join(_label("left", across.place(place) / WIDTH, text) for place, text in _axis_ticks(chart.axis, across))
    return (
        f'<figure class="chart">{head}<div class="plot"><div class="ys">{ys}</div>{picture}'
        f'<div class="xs">{xs}</div></div></figure>'
    )


def _curve(chart: Chart) -> Buckets:
    """Return the curve in few points, with the interval's ends for extremes if there is one."""
    curve = thin_out(chart.along, chart.values, NUM_BUCKETS)
    if chart.interval is None:
        return curve
    low, high = (thin_out(chart.along, end, NUM_BUCKETS) for end in chart.interval)
    return Buckets(along=curve.along, low=low.low, mean=curve.mean, high=high.high)


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` + 1 round numbers in [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class _Scale:
    """Puts values from [low, high] onto [0, length]."""

    low: float
    high: float
    length: int

    def place(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.length * min(1.0, max(0.0, share))

    def places(self, values: np.ndarray) -> np.ndarray:
        return self.length * np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)


def _axis_range(chart: Chart) -> tuple[float, float]:
    low, high = chart.span or (float(chart.along.min()), float(chart.along.max()))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _value_range(chart: Chart, curve: Buckets) -> tuple[float, float]:
    """Return the range that shows the curve; single values far above all others do not flatten it."""
    shown = curve.high if chart.dots is None or not len(chart.dots[1]) else np.concatenate([curve.high, chart.dots[1]])
    high, usual = float(shown.max()), float(np.quantile(shown, 0.98))
    if high > 3 * usual > 0:
        high = max(1.5 * usual, float(curve.mean[-1]))  # the newest value is what people look for first
    low = 0.0 if chart.from_zero else float(curve.low.min())
    if not high > low:
        reach = abs(low) or 1.0
        low, high = (low if chart.from_zero else low - reach / 2), low + reach
    gap = 0.04 * (high - low)
    return (low if chart.from_zero else low - gap), high + gap


def _axis_ticks(axis: str, across: _Scale) -> list[tuple[float, str]]:
    if axis == "epoch":
        ticks = [tick for tick in nice_ticks(across.low, across.high, 5) if tick == int(tick)]
        return [(tick, f"{int(tick):,}") for tick in ticks]
    span = across.high - across.low
    step = next(
        (step for step in TIME_STEPS if span / step <= 5), TIME_STEPS[-1] * math.ceil(span / TIME_STEPS[-1] / 5)
    )
    first = math.ceil(across.low / step)
    format_ = "%H:%M" if step < 86_400 and span < 2 * 86_400 else "%d %b"
    return [
        (index * step, datetime.datetime.fromtimestamp(index * step, datetime.UTC).strftime(format_))
        for index in range(first, math.floor(across.high / step) + 1)
    ]


def _y(up: _Scale, value: float) -> str:
    return f"{HEIGHT - up.place(value):.1f}"


def _points(across: _Scale, up: _Scale, along: np.ndarray, values: np.ndarray) -> str:
    xs, ys = across.places(along), HEIGHT - up.places(values)
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))


def _line(curve: Buckets, across: _Scale, up: _Scale) -> str:
    return f'<path class="line" d="M{_points(across, up, curve.along, curve.mean)}"/>'


def _band(curve: Buckets, across: _Scale, up: _Scale) -> str:
    if np.array_equal(curve.low, curve.high):
        return ""
    above = _points(across, up, curve.along, curve.high)
    below = _points(across, up, curve.along[::-1], curve.low[::-1])
    return f'<path class="band" d="M{above}L{below}Z"/>'


def _marks(curve: Buckets, across: _Scale, up: _Scale) -> str:
    """Return a mark for each point, and a bar for the interval of one alone, which has no band."""
    xs, ys = across.places(curve.along), HEIGHT - up.places(curve.mean)
    bar = f'<path class="bar" d="M{xs[0]:.1f} {_y(up, curve.low[0])}V{_y(up, curve.high[0])}"/>' if len(xs) == 1 else ""
    return f'{bar}<path class="marks" d="{"".join(map(_round_mark, xs, ys))}"/>'


def _round_mark(x: float, y: float) -> str:
    # A zero-length line with round ends stays a circle, however the picture is stretched.
    return f"M{x:.1f} {y:.1f}h0.01"


def _dots(chart: Chart, across: _Scale, up: _Scale) -> str:
    if chart.dots is None:
        return ""
    along, values = chart.dots
    inside = (along >= across.low) & (along <= across.high)
    along, values = along[inside], values[inside]
    step = max(1, math.ceil(len(along) / MAX_DOTS))
    places = [(across.place(a), HEIGHT - up.place(v)) for a, v in zip(along[::step], values[::step], strict=True)]
    return f'<path class="dots" d="{"".join(_round_mark(x, y) for x, y in places)}"/>' if places else ""


def _strips(chart: Chart, curve: Buckets, across: _Scale) -> str:
    step = max(1, math.ceil(len(curve.along) / NUM_STRIPS))
    chosen = list(range(0, len(curve.along), step))
    middles = [across.place(float(curve.along[index])) for index in chosen]
    bounds = [0.0, *((one + other) / 2 for one, other in itertools.pairwise(middles)), float(WIDTH)]
    return "".join(
        f'<rect class="strip" x="{start:.1f}" width="{end - start:.1f}" height="{HEIGHT}">'
        f"<title>{escaped(_tip(chart, curve, index, step))}</title></rect>"
        for index, (start, end) in zip(chosen, itertools.pairwise(bounds), strict=True)
    )


def _tip(chart: Chart, curve: Buckets, index: int, step: int) -> str:
    part = slice(index, index + step)
    low, high = float(curve.low[part].min()), float(curve.high[part].max())
    between = f" ({chart.write(low)} to {chart.write(high)})" if high > low else ""
    return f"{_place(chart.axis, float(curve.along[index]))}: {chart.write(float(curve.mean[part].mean()))}{between}"


def _place(axis: str, place: float) -> str:
    if axis == "epoch":
        return f"epoch {place:,.0f}"
    return datetime.datetime.fromtimestamp(place, datetime.UTC).strftime("%d %b %H:%M UTC")


def _label(side: str, share: float, text: str) -> str:
    return f'<span style="{side}:{100 * share:.2f}%">{escaped(text)}</span>'


def _newest(chart: Chart) -> str:
    if not len(chart.values):
        return chart.unit
    parts = [f"{chart.write(float(chart.values[-1]))} {chart.unit}".strip()]
    if chart.interval is not None and (chart.interval[0][-1] < chart.interval[1][-1]):
        parts[0] += f" ({chart.write(float(chart.interval[0][-1]))} to {chart.write(float(chart.interval[1][-1]))})"
    if chart.dots is not None and len(chart.dots[1]):
        parts.append(f"{chart.dots_title} {chart.write(float(chart.dots[1][-1]))}")
    return " · ".join(parts)


def _said(chart: Chart) -> str:
    low, high = float(chart.values.min()), float(chart.values.max())
    places = f"from {_place(chart.axis, float(chart.along[0]))} to {_place(chart.axis, float(chart.along[-1]))}"
    return f"{chart.title} {places}: between {chart.write(low)} and {chart.write(high)}; {_newest(chart)}"


def charts_html(charts: Sequence[Chart]) -> str:
    """Return several figures side by side, as many as the page has room for."""
    return f'<div class="board charts">{"".join(map(chart_html, charts))}</div>'
