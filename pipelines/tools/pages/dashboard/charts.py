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
NUM_STRIPS = 100
"""Places that show their values under the pointer."""

MAX_DOTS = 150
LEAST_ON_LOG_SCALE = 1e-9
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

    other: tuple[np.ndarray, np.ndarray] | None = None
    """Places and values of the same curve of another run."""

    other_title: str = ""
    is_log: bool = False
    """Whether the height is logarithmic; without effect where a value is not positive, and on counts."""

    smoothing: float = 0.0
    """Weight in [0, 1) of the past in the exponential average that is drawn over a curve without marks; 0: none."""

    note: str = ""
    """What the values stand on."""

    warns: bool = False
    """Whether the note is a warning."""


def chart_html(chart: Chart) -> str:
    """Return a figure with the curve, its axes and the values under the pointer; a sentence if there is no curve."""
    note = f'<p class="{"few" if chart.warns else "basis"}">{escaped(chart.note)}</p>' if chart.note else ""
    legend = f'<i class="other">{escaped(chart.other_title)}</i>' if chart.other is not None else ""
    newest = f"<output>{escaped(_newest(chart))}</output>"
    head = f"<figcaption><b>{escaped(chart.title)}{legend}</b>{newest}</figcaption>{note}"
    if not len(chart.along):
        return f'<figure class="chart">{head}<p class="empty">Nothing to show yet.</p></figure>'
    curve = _curve(chart)
    across = _Scale(*_axis_range(chart), WIDTH)
    other = _other(chart, across)
    up = _heights(chart, curve, other)
    marks = _marks(curve, across, up) if chart.has_marks else _dots(chart, across, up)
    ticks = log_ticks(up.low, up.high) if up.is_log else nice_ticks(up.low, up.high, 4)
    levels = [level for level in ticks if not chart.counts_things or level == int(level)]
    lines = "".join(f'<path class="level" d="M0 {_y(up, level)}H{WIDTH}"/>' for level in levels)
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escaped(_said(chart))}">'
        f"{lines}{_band(curve, across, up)}{_lines(chart, curve, other, across, up)}{marks}"
        f"{_strips(chart, curve, other, across)}</svg>"
    )
    ys = "".join(
        _label("bottom", up.place(level) / HEIGHT, (chart.write_level or chart.write)(level)) for level in levels
    )
    xs = "".join(_label("left", across.place(place) / WIDTH, text) for place, text in _axis_ticks(chart.axis, across))
    return (
        f'<figure class="chart">{head}<div class="plot" tabindex="0" role="group" data-keep="{escaped(chart.title)}" '
        f'aria-label="{escaped(chart.title)}: the arrow keys read single values" data-low="{float(across.low)}" '
        f'data-high="{float(across.high)}"><div class="ys">{ys}</div>{picture}<div class="xs">{xs}</div></div></figure>'
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


def log_ticks(low: float, high: float) -> list[float]:
    """Return at most seven of 1, 2 and 5 times powers of ten in [low, high]; round ones if there are not three."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors, step in ((1, 2, 5), 1), ((1,), 1), ((1,), math.ceil(len(powers) / 6)):
        ticks = [factor * 10.0**power for power in powers[::step] for factor in factors]
        inside = [float(f"{tick:.1g}") for tick in ticks if low <= tick <= high]
        if len(inside) <= 7:
            break
    return inside if len(inside) > 2 else nice_ticks(low, high, 4)


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Return the exponential average of the values so far, in which the first does not count as many."""
    average = total = 0.0
    found = []
    for value in values.tolist():
        average, total = weight * average + (1 - weight) * value, weight * total + (1 - weight)
        found.append(average / total)
    return np.array(found)


@dataclass(frozen=True)
class _Scale:
    """Puts values from [low, high] onto [0, length]."""

    low: float
    high: float
    length: int
    is_log: bool = False

    def place(self, value: float) -> float:
        return float(self.places(np.array(value)))

    def places(self, values: np.ndarray) -> np.ndarray:
        low, high = self.low, self.high
        if self.is_log:
            low, high, values = math.log(low), math.log(high), np.log(np.maximum(values, low))
        return self.length * np.clip((values - low) / (high - low), 0.0, 1.0)


def _axis_range(chart: Chart) -> tuple[float, float]:
    low, high = chart.span or (float(chart.along.min()), float(chart.along.max()))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _other(chart: Chart, across: _Scale) -> Buckets | None:
    """Return the other run's curve in few points, as far as it is in the picture."""
    if chart.other is None:
        return None
    along, values = chart.other
    inside = (along >= across.low) & (along <= across.high)
    return thin_out(along[inside], values[inside], NUM_BUCKETS) if inside.any() else None


def _heights(chart: Chart, curve: Buckets, other: Buckets | None) -> _Scale:
    """Return the scale that shows the curve; single values far above all others do not flatten it."""
    shown = np.concatenate([
        curve.high,
        *([chart.dots[1]] if chart.dots is not None else []),
        *([other.mean] if other is not None else []),
    ])  # fmt: skip
    lowest = min(float(one.min()) for one in (curve.low, *([other.mean] if other is not None else [])))
    if chart.is_log and lowest > LEAST_ON_LOG_SCALE and not chart.counts_things:
        gap = max(1.02, (float(shown.max()) / lowest) ** 0.04)
        return _Scale(lowest / gap, float(shown.max()) * gap, HEIGHT, is_log=True)
    return _Scale(*_value_range(chart, curve, shown, lowest), HEIGHT)


def _value_range(chart: Chart, curve: Buckets, shown: np.ndarray, lowest: float) -> tuple[float, float]:
    high, usual = float(shown.max()), float(np.quantile(shown, 0.98))
    if high > 3 * usual > 0:
        high = max(1.5 * usual, float(curve.mean[-1]))  # the newest value is what people look for first
    low = 0.0 if chart.from_zero else lowest
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


def _lines(chart: Chart, curve: Buckets, other: Buckets | None, across: _Scale, up: _Scale) -> str:
    """Return the curve, its smooth course over it, and the other run's below both."""
    weight = 0.0 if chart.has_marks else chart.smoothing

    def line(kind: str, along: np.ndarray, values: np.ndarray) -> str:
        return f'<path class="{kind}" d="M{_points(across, up, along, values)}"/>'

    lines = [] if other is None else [line("other", other.along, smooth(other.mean, weight))]
    if weight:
        lines.append(line("raw", curve.along, curve.mean))
    return "".join([*lines, line("line", curve.along, smooth(curve.mean, weight))])


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


def _strips(chart: Chart, curve: Buckets, other: Buckets | None, across: _Scale) -> str:
    step = max(1, math.ceil(len(curve.along) / NUM_STRIPS))
    chosen = list(range(0, len(curve.along), step))
    middles = [across.place(float(curve.along[index])) for index in chosen]
    bounds = [0.0, *((one + other) / 2 for one, other in itertools.pairwise(middles)), float(WIDTH)]
    return "".join(
        f'<rect class="strip" x="{start:.1f}" width="{end - start:.1f}" height="{HEIGHT}" '
        f'data-tip="{escaped(_tip(chart, curve, other, index, step))}"/>'
        for index, (start, end) in zip(chosen, itertools.pairwise(bounds), strict=True)
    )


def _tip(chart: Chart, curve: Buckets, other: Buckets | None, index: int, step: int) -> str:
    part = slice(index, index + step)
    low, high = float(curve.low[part].min()), float(curve.high[part].max())
    between = f" ({chart.write(low)} to {chart.write(high)})" if high > low else ""
    place, than = float(curve.along[index]), ""
    if other is not None and other.along[0] <= place <= other.along[-1]:
        than = f"; {chart.other_title} {chart.write(float(np.interp(place, other.along, other.mean)))}"
    return f"{_place(chart.axis, place)}: {chart.write(float(curve.mean[part].mean()))}{between}{than}"


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
