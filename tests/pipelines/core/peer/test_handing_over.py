"""Who shall have a run's last state, for how long a peer stays for that, and what it says."""

from dataclasses import replace

import pytest

from pipelines.core.peer.handing_over import SECONDS_FOR_HEIRS, SECONDS_TO_HAND_OVER, Heirs, parting_words

LAST = 300
NOBODY = Heirs(signed_epoch=None, held_epochs=[], num_without=0, are_coming=False)


@pytest.mark.parametrize(
    ("heirs", "expected"),
    [
        (dict(signed_epoch=299, held_epochs=[300]), False),
        (dict(signed_epoch=300, num_without=1, are_coming=True), True),
        (dict(signed_epoch=0), False),
        (dict(held_epochs=[299]), False),
        (dict(held_epochs=[250, 300]), True),
        (dict(num_without=1), False),
        (dict(are_coming=True), False),
        (dict(), True),
    ],
    ids=[
        "in a run with anchors the word of others is not enough",
        "an anchor has signed it",
        "no anchor has been heard",
        "the auxiliary peer is behind",
        "one of the auxiliary peers has it",
        "one of the trainers has another one",
        "somebody is downloading it",
        "all trainers have it, or there is none",
    ],
)
def test_the_last_state_is_kept_without_this_peer(heirs, expected):
    assert replace(NOBODY, **heirs).have(LAST) is expected


def test_a_peer_leaves_within_twenty_seconds_unless_somebody_shows_that_he_is_coming():
    coming = replace(NOBODY, are_coming=True)
    assert NOBODY.patience(0.0) == NOBODY.patience(60.0) == coming.patience(0.0) == SECONDS_TO_HAND_OVER == 20.0
    assert coming.patience(SECONDS_TO_HAND_OVER) == SECONDS_FOR_HEIRS


def test_who_leaves_with_a_state_that_nobody_else_has_says_so_in_one_line_with_the_cure():
    words = parting_words(replace(NOBODY, signed_epoch=299), LAST, 20.0, "org/birds")
    assert words.startswith("Waited 20 s in vain until an anchor has signed the final state")
    assert "dalle-collab run assist org/birds" in words and "\n" not in words
    assert parting_words(replace(NOBODY, held_epochs=[299]), LAST, 20.0, "") == (
        "Waited 20 s in vain until an auxiliary peer has the final state; this peer leaves with that of epoch 300."
    )
