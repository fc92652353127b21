"""Intervals contain the truth as often as they say, and are the same for the same seed."""

import numpy as np
import pytest
import torch

from pipelines.features.evaluation.comparison import verdict
from pipelines.features.evaluation.figures import bootstrapped_mean, t_interval


def test_intervals_contain_the_mean_of_the_population_about_19_times_in_20():
    generator = np.random.default_rng(1)
    inside = {"bootstrap": 0, "t": 0}
    for trial in range(100):
        low, high = bootstrapped_mean(torch.from_numpy(generator.exponential(size=80)), seed=trial)[1:]
        inside["bootstrap"] += low <= 1 <= high
        low, high = t_interval(generator.normal(1, 3, size=4).tolist())[1:]
        inside["t"] += low <= 1 <= high
    assert 86 <= inside["bootstrap"] <= 99 and 88 <= inside["t"] <= 100


def test_the_same_seed_gives_the_same_interval():
    values = torch.arange(20.0)
    assert bootstrapped_mean(values, 3) == bootstrapped_mean(values, 3) != bootstrapped_mean(values, 4)


def test_a_single_drawing_has_no_width_and_nothing_has_no_mean():
    assert t_interval([2.0]) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="nothing to average"):
        bootstrapped_mean([])


@pytest.mark.parametrize(
    ("low", "high", "better", "expected"),
    [
        (0.0, 0.0, "lower", "same"), (-1, 1, "lower", "same"), (1, 2, "lower", "first"), (-2, -1, "lower", "second"),
        (1, 2, "higher", "second"), (-2, -1, "higher", "first"), (1, 2, "neither", "different"),
    ],
)  # fmt: skip
def test_who_is_better_follows_from_the_interval_of_second_minus_first(low, high, better, expected):
    assert verdict(low, high, better) == expected
