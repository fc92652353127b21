"""Distances of sets: equal to torchmetrics' on the same features, and what they must be in known cases."""

import math

import pytest
import torch
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from pipelines.features.evaluation.set_distances import cmmd, frechet_distance, kernel_distance


def features(number, seed, shift=0.0, size=8):
    return torch.randn(number, size, generator=torch.Generator().manual_seed(seed)) + shift


class Unchanged(torch.nn.Module):
    """Takes features for pictures."""

    num_features = 8

    def forward(self, values):
        return values


@pytest.mark.parametrize("shift", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("numbers", [(200, 200), (60, 150)])
def test_the_frechet_distance_is_that_of_torchmetrics(shift, numbers):
    first, second = features(numbers[0], 1), features(numbers[1], 2, shift)
    other = FrechetInceptionDistance(feature=Unchanged(), normalize=True).set_dtype(torch.float64)
    other.update(first.double(), real=True)
    other.update(second.double(), real=False)
    assert frechet_distance(first, second) == pytest.approx(other.compute().item(), abs=1e-3)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save all")
@pytest.mark.parametrize("shift", [0.0, 0.3, 3.0])
def test_the_kernel_distance_is_that_of_torchmetrics(shift):
    first, second = features(150, 1), features(150, 2, shift)
    other = KernelInceptionDistance(feature=Unchanged(), subsets=1, subset_size=150, normalize=True)
    other.update(first, real=True)
    other.update(second, real=False)
    assert kernel_distance(first, second) == pytest.approx(other.compute()[0].item(), abs=1e-3)


def test_the_kernel_distance_of_sets_of_unequal_size_is_the_formula():
    first, second = features(7, 1).double(), features(5, 2, 0.5).double()
    kernel = lambda a, b: (a @ b.T / a.shape[1] + 1) ** 3  # noqa: E731
    within = [kernel(x, x)[~torch.eye(len(x), dtype=torch.bool)].mean() for x in (first, second)]
    expected = within[0] + within[1] - 2 * kernel(first, second).mean()
    assert kernel_distance(first, second) == pytest.approx(expected.item(), rel=1e-9)


def test_cmmd_is_the_papers_formula_without_bias():
    first, second = (torch.nn.functional.normalize(item) for item in (features(30, 1), features(30, 2, 0.2)))
    kernel = lambda a, b: torch.exp(-(torch.cdist(a.double(), b.double()) ** 2) / 200)  # noqa: E731
    off = ~torch.eye(30, dtype=torch.bool)
    expected = kernel(first, first)[off].mean() + kernel(second, second)[off].mean() - 2 * kernel(first, second).mean()
    assert cmmd(first, second) == pytest.approx(1000 * expected.item(), rel=1e-6)


def test_a_set_has_no_distance_from_itself_and_a_shift_counts_squared():
    same, moved = features(100, 1), features(100, 1, 2.0)
    assert frechet_distance(same, same) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(same, moved) == pytest.approx(8 * 2.0**2, rel=1e-4)
    assert kernel_distance(same, moved) > kernel_distance(same, features(100, 5)) - 1e-9


def test_fewer_pictures_than_features_still_give_a_number():
    assert math.isfinite(frechet_distance(features(4, 1, size=64), features(4, 2, size=64)))
    assert math.isfinite(kernel_distance(features(2, 1), features(3, 2)))


@pytest.mark.parametrize("bad", [torch.zeros(1, 8), torch.zeros(8), torch.zeros(2, 2, 2)])
def test_what_is_not_a_set_of_features_is_refused(bad):
    with pytest.raises(ValueError, match="Expected features"):
        frechet_distance(bad, features(4, 1))
