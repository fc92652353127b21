"""What one reading of the swarm's records decides: the state to take, and whether a peer can tell at all."""

from types import SimpleNamespace

import pytest

from pipelines.training.state.anchors import Anchorage
from pipelines.training.state.survey import StateSurvey

TRAINER, STRANGER = b"trainer", b"stranger"


def claim(epoch, digest="right"):
    return SimpleNamespace(peer_id=f"peer {digest}", epoch=epoch, digest=digest, shares=True)


def seen_with(claims=None, epochs=None, voters=(), *, has_anchors=True, anchor_epoch=None, believes_strangers=False):
    present = None
    if anchor_epoch is not None:
        present = SimpleNamespace(epoch=anchor_epoch, digest="right", returns=False)
    return StateSurvey(
        claims=claims or {},
        epochs=epochs or {},
        voters=voters,
        believes_strangers=believes_strangers,
        users={},
        anchorage=Anchorage(has_anchors=has_anchors, present=present),
    )


def test_in_a_run_with_anchors_claims_of_strangers_say_nothing():
    seen = seen_with({STRANGER: claim(9, "wrong")}, {STRANGER: 9})
    assert seen.verdict() is None and seen.newest_epoch == 0
    assert seen.is_without_word and seen.is_among_strangers


def test_known_voters_are_believed_while_no_anchor_is_there():
    seen = seen_with({TRAINER: claim(5), STRANGER: claim(9, "wrong")}, {TRAINER: 5, STRANGER: 9}, voters={TRAINER})
    assert (seen.newest_epoch, seen.verdict().digest) == (5, "right")
    assert not seen.is_without_word and not seen.is_among_strangers


def test_an_anchor_whose_state_nobody_serves_yet_still_says_which_epoch_it_is():
    seen = seen_with({STRANGER: claim(4, "wrong")}, {STRANGER: 4}, anchor_epoch=4)
    assert seen.verdict() is None and seen.newest_epoch == 4
    assert seen.is_without_word and not seen.is_among_strangers


@pytest.mark.parametrize("believes_strangers", [True, False])
def test_without_anchors_all_claims_count_for_who_knows_nobody(believes_strangers):
    seen = seen_with({STRANGER: claim(3)}, {STRANGER: 3}, has_anchors=False, believes_strangers=believes_strangers)
    assert seen.newest_epoch == (3 if believes_strangers else 0)
    assert not seen.is_without_word and not seen.is_among_strangers


def test_a_refused_digest_is_not_taken():
    seen = seen_with({TRAINER: claim(5)}, {TRAINER: 5}, voters={TRAINER})
    assert seen.verdict({"right"}) is None


def test_while_nobody_trains_no_peer_waits_for_word():
    assert not seen_with().is_without_word and not seen_with().is_among_strangers
