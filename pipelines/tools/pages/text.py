"""Numbers as shown on the page."""

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
