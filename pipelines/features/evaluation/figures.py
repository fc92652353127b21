"""Figures with their intervals. Pure.

Two kinds of interval, both of 95 %: over items (records, pictures), by the bootstrap of their mean; over repeated
drawings of the same prompts, by Student's t, for figures of a whole set of pictures.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import stats

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000

LOWER, HIGHER, NEITHER = "lower", "higher", "neither"


def bootstrapped_mean(values: torch.Tensor | Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean of some items and its percentile interval (Efron 1979), the same for the same seed."""
    items = np.asarray(torch.as_tensor(values).double())
    if not len(items):
        raise ValueError("There is nothing to average.")
    generator = np.random.default_rng(seed)
    means = [float(items[generator.integers(len(items), size=len(items))].mean()) for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(items.mean()), float(low), float(high)


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of repeated figures and Student's interval; one alone has no width."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, mean, mean
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread
    return mean, mean - reach, mean + reach


def wilson_interval(right: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, which stays within 0 and 1 and has a width at both ends."""
    interval = stats.binomtest(right, of).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def in_chunks(compute: Callable[[torch.Tensor], torch.Tensor], items: torch.Tensor, size: int) -> torch.Tensor:
    """Return what a function makes of many items, `(item, ...) -> (item, ...)` on the CPU, some at a time."""
    return torch.cat([compute(chunk).cpu() for chunk in items.split(size)])
