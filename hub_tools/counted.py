"""Figures for people: counts, lengths of time, dates, losses, bytes. One figure reads the same wherever it stands.

`spaces/landing_page/scripts/numbers.js` writes the same in a browser; a test gives both the same numbers.
"""

import datetime
import math
from decimal import ROUND_HALF_UP, Decimal

UNITS_OF_FILES = ("bytes", "kB", "MB", "GB", "TB", "PB")
UNITS_OF_MEMORY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count of things: `1 peer`, `1,200 peers`; `plural` where an s does not make it."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a length of time: `45 s`, `12 min`, `3 h 5 min`, `2.5 days`."""
    minutes = math.floor(seconds / 60 + 0.5)
    if seconds < 100:
        return f"{_fixed(seconds, 0)} s" if seconds >= 1 else f"{seconds:.3g} s"
    if minutes >= 48 * 60:
        return f"{_fixed(seconds / 86_400, 1)} days"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def date(seconds: float) -> str:
    """Return a time, in seconds since 1970, with its zone: `2026-11-21 14:05 UTC`; `–` for an impossible one."""
    if not 0 < seconds < 1e11:
        return "–"
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def nats(loss: float | None) -> str:
    """Return a loss with the digits that it has everywhere: `2.3456`; `–` for none."""
    return "–" if loss is None or not math.isfinite(loss) else _fixed(loss, 4)


def file_size(num_bytes: float) -> str:
    """Return the bytes of a file or of traffic in powers of 1,000: `1.6 kB`, `2.5 GB`."""
    return _in_units(num_bytes, 1000, UNITS_OF_FILES)


def memory_size(num_bytes: float) -> str:
    """Return the bytes of a memory in powers of 1,024: `512 MiB`, `8 GiB`."""
    return _in_units(num_bytes, 1024, UNITS_OF_MEMORY)


def _in_units(number: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / base, power + 1
    digits = 0 if number >= 99.95 or power == 0 else 1
    return _fixed(number, digits).removesuffix(".0") + f" {units[power]}"


def _fixed(number: float, digits: int) -> str:
    """Return a number with so many digits after the point, halves rounded away from 0 as browsers do."""
    return f"{Decimal(number).quantize(Decimal(10) ** -digits, rounding=ROUND_HALF_UP):,}"
