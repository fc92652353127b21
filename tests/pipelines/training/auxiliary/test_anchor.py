"""When an anchor tests a state before it follows it, and what it takes for worse."""

import math

import pytest

from pipelines.training.auxiliary.anchor import EPOCHS_WITHOUT_A_TEST, WORSE, is_worse, needs_a_test


def test_a_short_gap_is_crossed_at_once_by_an_anchor_that_has_just_averaged():
    assert not needs_a_test(1, has_averaged=True) and not needs_a_test(EPOCHS_WITHOUT_A_TEST, has_averaged=True)
    assert needs_a_test(EPOCHS_WITHOUT_A_TEST + 1, has_averaged=True)


def test_after_a_restart_every_state_is_tested():
    assert needs_a_test(1, has_averaged=False)


@pytest.mark.parametrize(
    ("loss", "own_loss", "expected"),
    [(3.0, 3.5, False), (3.5, 3.5, False), (3.5 * WORSE, 3.5, False), (3.6, 3.5, True), (math.nan, 3.5, True)],
    ids=["better", "the same", "within the noise", "worse", "not a number"],
)
def test_a_state_is_worse_if_its_held_out_loss_is(loss, own_loss, expected):
    assert is_worse(loss, own_loss) == expected


def test_without_held_out_data_nothing_is_worse():
    assert not is_worse(None, None) and not is_worse(3.0, None) and not is_worse(None, 3.0)
