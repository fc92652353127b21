"""When an anchor signs, when it tests a state before it follows it, and what it takes for worse."""

import itertools
import math
from types import SimpleNamespace

import pytest

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.state.anchors import AnchorWatch
from pipelines.features.anchors.anchor import (
    EPOCHS_TO_SIGN,
    EPOCHS_WITHOUT_A_TEST,
    SECONDS_TO_AGREE,
    WORSE,
    is_worse,
    needs_a_test,
    signed_record,
    waits_for_others,
)


def test_what_an_anchor_signs_counts_as_its_word(tmp_path):
    key = PublisherKey.load_or_create(tmp_path / "key.pem")
    said = signed_record(key, "birds", epoch=5, digest="a" * 64, roster=["0" * 16], returns=False, time=1e6)
    seen = AnchorWatch(SimpleNamespace(anchors=lambda: [said]), "birds", lambda: [key.public], clock=lambda: 1e6).look()
    assert (seen.present, seen.roster) == (said, {"0" * 16})


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


def test_an_anchor_signs_at_once_what_the_others_bear_out_and_otherwise_some_seconds_later():
    waits = dict(seconds=0.0, num_epochs=1, is_borne_out=False)
    assert waits_for_others(**waits)
    assert not waits_for_others(**waits | dict(is_borne_out=True))
    assert not waits_for_others(**waits | dict(seconds=SECONDS_TO_AGREE))


@pytest.mark.parametrize("seconds_per_epoch", [0.2, 1.6, 4.9, 60.0])
def test_an_anchor_signs_at_least_every_third_state_whatever_the_pace(seconds_per_epoch):
    """Nobody ever bears it out here; with 1.6 s for an epoch it signed nothing before."""
    signed = [0]
    for epoch in range(1, 30):
        # Just before the next state takes its place.
        if not waits_for_others(seconds=seconds_per_epoch, num_epochs=epoch - signed[-1], is_borne_out=False):
            signed.append(epoch)
    assert max(after - before for before, after in itertools.pairwise(signed)) <= EPOCHS_TO_SIGN
    assert signed[-1] > 29 - EPOCHS_TO_SIGN
