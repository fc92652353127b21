"""Numbers and times as shown on the page."""

import datetime
import math


def short_number(value: float | None) -> str:
    """Return a number in few characters: `0`, `0.0021`, `3.14`, `12,300`, `4.6M`; `–` for none."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 999_950:
        power = min(4, int(math.log(size * 1.00005, 1000)))
        return f"{value / 1000**power:.3g}{' kMGT'[power]}" if size < 1e15 else f"{value:.1e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size and size < 1e-3:
        return f"{value:.2g}"
    return f"{value:.4g}"


def date(seconds: float) -> str:
    """Return a readable time in UTC; `–` for an invalid one."""
    if not 0 < seconds < 1e11:
        return "–"
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
