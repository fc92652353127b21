"""Figures with their intervals. Pure.

Two kinds of interval, both of 95 %: over items (records, pictures), by the bootstrap of their mean; over repeated
drawings of the same prompts, by Student's t, for figures of a whole set of pictures.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000

LOWER, HIGHER, NEITHER = "lower", "higher", "neither"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of an evaluation."""

    name: str
    value: float
    low: float
    """Lower end of the interval; equal to the value where nothing could be repeated."""

    high: float
    num_items: int
    """Records, pictures or drawings that it is computed from."""

    items: str
    """What they are, in the plural."""

    better: str
    """Whether `lower` or `higher` is better, or `neither`."""

    meaning: str
    """One sentence for people, with the method's source."""

    @property
    def interval(self) -> str:
        """The interval as text."""
        return f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """What a figure means, wherever it is computed."""

    name: str
    items: str
    better: str
    meaning: str

    def of_items(self, values: torch.Tensor | Sequence[float], seed: int = 0) -> Figure:
        """Return the mean over items, `values: (item)`."""
        mean, low, high = bootstrapped_mean(values, seed)
        return self._figure(mean, low, high, len(values))

    def of_drawings(self, values: Sequence[float]) -> Figure:
        """Return the mean over repeated drawings of a figure of a whole set."""
        mean, low, high = t_interval(values)
        return self._figure(mean, low, high, len(values))

    def of_all(self, value: float, number: int) -> Figure:
        """Return a figure of all items together, of which there is one alone."""
        return self._figure(value, value, value, number)

    def _figure(self, value: float, low: float, high: float, number: int) -> Figure:
        return Figure(
            name=self.name, value=value, low=low, high=high, num_items=number,
            items=self.items, better=self.better, meaning=self.meaning,
        )  # fmt: skip


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
