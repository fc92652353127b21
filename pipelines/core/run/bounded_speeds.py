"""How far the speeds that peers report of themselves count."""

import statistics
from collections.abc import Sequence

LARGEST_SPEED_RATIO = 20.0
"""A peer weighs at most as much as this many typical ones: speeds are self-reported."""


def bounded_speeds(speeds: Sequence[float]) -> list[float]:
    """Return speeds, each capped at `LARGEST_SPEED_RATIO` times the typical one."""
    limit = LARGEST_SPEED_RATIO * statistics.median_low(speeds) if speeds else 0.0
    return [min(speed, limit) if limit > 0 else speed for speed in speeds]
