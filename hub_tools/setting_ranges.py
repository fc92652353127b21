"""The range of every number and the length of every text in `training_run.json`, which may be a stranger's."""

import math
from collections.abc import Mapping

from hub_tools.checks import is_number

MOST_BYTES = 2**20
"""Of the file."""

MOST_VALUES, MOST_DEPTH, LONGEST_TEXT, LARGEST_NUMBER = 4096, 8, 4096, 2**40
"""Of all settings together: values, lists within lists, characters of one text, and size of a number without a row."""

LEAST_SECONDS, MOST_SECONDS = 0.01, 86_400.0

RANGES: dict[str, tuple[float, float]] = {
    "target_batch_size": (1, 2**40),
    "num_epochs": (1, 10**8),
    "num_warmup_epochs": (0, 10**8),
    "peak_learning_rate": (0, 1e4),
    "epsilon": (0, 1e4),
    "weight_decay": (0, 1e4),
    "max_gradient_norm": (0, 1e12),
    "local_steps": (1, 10**6),
    "inner_batch_size": (1, 2**40),
    "matchmaking_seconds": (LEAST_SECONDS, MOST_SECONDS),
    "averaging_timeout_seconds": (LEAST_SECONDS, MOST_SECONDS),
    "progress_expiration_seconds": (LEAST_SECONDS, MOST_SECONDS),
    "window_seconds": (1, MOST_SECONDS),
    "num_clipping_iterations": (1, 10**5),
    "max_norm_ratio": (1, 1e9),
    "max_weight_ratio": (1, 1e9),
    "tau_ratio": (1, 1e9),
    "checkpoint_interval_epochs": (1, 10**8),
    "num_evaluation_records": (1, 2**20),
    "generation": (0, 10**6),
}
"""Smallest and largest value; what has no row is at most `LARGEST_NUMBER` from zero."""


def check_ranges(settings: Mapping[str, object]) -> None:
    """Raise ValueError naming a setting that is too large, too long, too deep, not finite, or out of its range."""
    left = MOST_VALUES
    waiting = [(name, value, 0) for name, value in settings.items()]
    while waiting:
        name, value, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > MOST_DEPTH:
            raise ValueError(f"{name} has too many values, or lists within lists; expected {MOST_VALUES} in all.")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise ValueError(f"{name} has {len(value)} characters; expected at most {LONGEST_TEXT}.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            least, most = RANGES.get(name, (-LARGEST_NUMBER, LARGEST_NUMBER)) if not depth else (-math.inf, math.inf)
            if not is_number(value) or abs(value) > LARGEST_NUMBER or not least <= value <= most:
                raise ValueError(f"{name} is {str(value)[:40]}; expected a number from {least:g} to {most:g}.")
        if isinstance(value, Mapping):
            waiting += [(name, part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple):
            waiting += [(name, part, depth + 1) for part in value]
