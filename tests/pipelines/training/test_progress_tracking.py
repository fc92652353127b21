"""Which epoch the swarm is in, when some of its records are late and one may be a lie."""

import pytest

from pipelines.training.progress_tracking import witnessed_epoch


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([], 0),
        ([7], 7),
        ([7, 9], 9),
        ([7, 7, 8], 7),
        ([7, 8, 8], 8),
        ([7, 7, 7, 1000], 7),
        ([5] * 10 + [1000] * 2, 5),
        ([5] * 8 + [6] * 4, 6),
    ],
    ids=["alone", "one", "two", "first to finish", "second to finish", "liar", "too few liars", "a third moved on"],
)
def test_the_swarms_epoch_is_one_that_several_have_reached(epochs, expected):
    assert witnessed_epoch(epochs) == expected
