"""Whom a peer believes about the swarm's progress, when keys are free and some of them lie."""

import pytest

from pipelines.core.epoch.acquaintances import (
    ROUNDS_REMEMBERED,
    ROUNDS_TO_SHOW_UP,
    Acquaintances,
    believed_epoch,
)
from pipelines.core.swarm.records import sender_name


def epochs_of(*epochs):
    return {str(number): epoch for number, epoch in enumerate(epochs)}


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
        ([5] * 6 + [6] * 6, 6),
    ],
    ids=["alone", "one", "two", "first to finish", "second to finish", "liar", "too few liars", "half moved on"],
)
def test_the_swarms_epoch_is_one_that_half_have_reached(epochs, expected):
    assert believed_epoch(epochs_of(*epochs), set(), believes_strangers=True) == expected


def test_any_number_of_strangers_is_not_believed_against_those_one_has_averaged_with():
    claims = epochs_of(7, 8, 8, *[10**6] * 50)
    assert believed_epoch(claims, {"0", "1", "2"}, believes_strangers=True) == 8
    assert believed_epoch(claims, {"0"}, believes_strangers=True) == 7


def test_a_peer_is_known_after_a_round_with_it_and_for_some_rounds():
    known = Acquaintances()
    known.note_claims({"ann", "bob"})
    assert not known.know("ann")
    known.note_round(1, ["ann"])
    assert known.know("ann") and not known.know("bob")
    for number in range(2, ROUNDS_REMEMBERED + 1):
        known.note_round(number, ["bob"])
    assert known.know("ann"), "one that left is missed for a while"
    known.note_round(ROUNDS_REMEMBERED + 1, ["bob"])
    assert not known.know("ann") and known.know("bob")


def test_while_a_peer_knows_nobody_it_believes_those_whom_an_anchor_vouches_for():
    known = Acquaintances()
    assert known.believe_strangers, "the run has no anchors"
    known.vouch(frozenset({sender_name("ann")}))
    assert known.know("ann") and not known.know("bob") and not known.believe_strangers
    known.note_round(1, ["bob"])
    assert known.know("bob") and not known.know("ann"), "its own experience is worth more"
    assert believed_epoch(epochs_of(7, 7), set(), believes_strangers=False) == 0


def test_failed_rounds_count_against_those_who_come_to_none():
    known = Acquaintances()
    known.note_claims({"liar"})
    for _ in range(ROUNDS_TO_SHOW_UP):
        assert known.count("liar")
        known.note_failure()
    assert not known.count("liar")
    known.note_round(1, ["ann"])
    for _ in range(ROUNDS_REMEMBERED):
        assert known.know_somebody
        known.note_failure()
    assert not known.know_somebody


def test_who_claims_samples_and_comes_to_no_round_is_not_counted_any_more():
    known = Acquaintances()
    known.note_round(5, ["bob"])
    known.note_claims({"bob", "liar"})
    for number in range(6, 5 + ROUNDS_TO_SHOW_UP):
        known.note_round(number, ["bob"])
        assert known.count("liar"), "it may be late"
    known.note_round(5 + ROUNDS_TO_SHOW_UP, ["bob"])
    assert not known.count("liar") and known.count("bob")
    known.note_claims({"bob"})
    known.note_claims({"bob", "liar"})
    assert known.count("liar"), "whoever comes back is new again"
    known.note_round(6 + ROUNDS_TO_SHOW_UP, ["bob", "liar"])
    assert known.count("liar")


def test_between_rounds_nothing_is_learnt():
    known = Acquaintances()
    known.note_round(1, ["ann"])
    known.note_round(1, ["bob"])
    assert known.know("ann") and not known.know("bob")


def test_a_peer_that_averages_with_the_anchor_alone_knows_nobody_and_goes_on_asking_the_roster():
    known = Acquaintances("own")
    known.vouch(frozenset({sender_name("own"), sender_name("ann")}))
    for number in range(1, ROUNDS_REMEMBERED + 1):
        known.note_claims({"own", "ann"})
        known.note_round(number, ["own"])  # the anchor listens: it sends nothing
    assert not known.know_somebody and not known.know("own") and known.count("own")
    assert known.know("ann"), "the anchor vouches for it"
    assert known.quorum == 1, "half of the others"


def test_samples_of_strangers_end_no_epoch_once_a_peer_knows_somebody():
    known = Acquaintances("own")
    assert set(known.give_samples({"own", "ann", "liar"}, listens=False)) == {"own", "ann", "liar"}, "a run begins"
    known.note_round(1, ["own", "ann"])
    assert set(known.give_samples({"own", "ann", "liar"}, listens=False)) == {"own", "ann"}
    known.note_round(2, ["own", "ann", "bob"])
    assert set(known.give_samples({"own", "ann", "bob"}, listens=False)) == {"own", "ann", "bob"}, "its second epoch"


def test_a_newcomer_counts_as_the_others_do_who_do_not_count_it_yet():
    known = Acquaintances("own")
    known.meet({"own", "ann"})
    assert set(known.give_samples({"own", "ann", "liar"}, listens=False)) == {"ann"}
    known.note_round(1, ["own", "ann"])
    assert set(known.give_samples({"own", "ann", "liar"}, listens=False)) == {"own", "ann"}


def test_those_an_anchor_names_give_samples_and_so_does_a_peer_that_it_names():
    known = Acquaintances("own")
    known.vouch(frozenset({sender_name("ann")}))
    known.meet({"liar"})
    assert set(known.give_samples({"own", "ann", "liar"}, listens=False)) == {"ann"}, "it asks the anchor alone"
    known.vouch(frozenset({sender_name("ann"), sender_name("own")}))
    assert set(known.give_samples({"own", "ann", "liar"}, listens=False)) == {"own", "ann"}
    known.note_round(1, ["own", "bob"])
    assert set(known.give_samples({"own", "ann", "bob"}, listens=False)) == {"own", "ann", "bob"}


def test_where_nobody_is_known_everybody_counts_for_a_trainers_first_rounds_and_always_for_who_listens():
    known = Acquaintances("own")
    known.vouch(frozenset({sender_name("gone")}))
    for _ in range(ROUNDS_TO_SHOW_UP):
        assert set(known.give_samples({"own", "liar"}, listens=False)) == {"own", "liar"}, "all have come back"
        known.note_failure()
    assert set(known.give_samples({"own", "liar"}, listens=False)) == {"own"}
    assert set(known.give_samples({"own", "liar"}, listens=True)) == {"own", "liar"}


def test_an_anchor_that_missed_the_round_in_which_two_met_counts_both_as_they_do():
    anchor = Acquaintances("anchor")
    anchor.vouch(frozenset())
    anchor.note_claims({"ann"})
    anchor.note_round(1, ["ann"])
    anchor.note_claims({"ann", "bob", "liar"})
    present = {"anchor", "ann", "bob", "liar"}
    assert set(anchor.give_samples(present, listens=True)) == {"anchor", "ann"}
    assert not anchor.take_over_with(present)
    anchor.meet({"ann", "bob"})  # they had the state that it has taken over from those whom it knows
    assert set(anchor.take_over_with(present)) == {"ann", "bob"}
    for number in range(2, 2 + ROUNDS_TO_SHOW_UP):
        anchor.note_claims({"ann"} if number % 2 else {"ann", "bob"})
        anchor.note_round(number, ["ann"])
    assert not anchor.take_over_with(present), "bob came to none, however often his record comes anew"
