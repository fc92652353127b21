"""Which contributions count in a round over the Hub, and which lists are believed."""

import dataclasses
from collections import Counter

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.signing.signed_statement import StatementRefusedError, read_statement, signature_of, signed_text
from pipelines.features.hub_rounds.closing import (
    NOT_DRAWN,
    NextRound,
    drawn_order,
    fault_of,
    next_deadline,
    refusal,
    takes_back,
    weights_of,
)
from pipelines.features.hub_rounds.statements import Candidate, Pointer, RoundList, SignedPointer

STATE, AFTER = "a" * 64, "b" * 64
TERMS = NextRound(swarm_id="birds", round=8, state=STATE, sizes=range(100, 200))


def new_key():
    return PublisherKey(Ed25519PrivateKey.generate())


KEY, OTHER = new_key(), new_key()


def pointer(user="alice", number=0, **changes):
    values = dict(
        swarm_id="birds", user=user, round=8, state=STATE, digest=f"{number:064x}", size=150, samples=64,
        total_samples=640, loss=2.0, samples_per_second=3.5, device="cpu", package_version="0.1", key=KEY.public,
    )  # fmt: skip
    return Pointer(**(values | changes))


def member(user, number):
    found = pointer(user, number)
    return SignedPointer(pointer=found, signature=signature_of(found, KEY))


def round_list(users, left_out=(), **changes):
    members = tuple(member(user, number) for number, user in enumerate(users))
    values = dict(
        swarm_id="birds", round=8, previous=STATE, state=AFTER, members=members,
        left_out=tuple(Candidate(user=user, reason=NOT_DRAWN) for user in left_out), closed_at=5.0, deadline=9.0,
        key=KEY.public,
    )  # fmt: skip
    return RoundList(**(values | changes))


def test_the_words_of_strangers_are_shown_on_one_line_without_what_a_terminal_obeys():
    for changes in (dict(swarm_id="a\n\x1b[2J\u202e" + "b" * 500), dict(user="a\n\x1b[2J\u202e" + "b" * 500)):
        said = refusal(pointer(**changes), "alice", TERMS)
        assert said.isprintable() and len(said) < 150, said


def test_what_is_signed_is_read_again_and_nothing_else():
    closed = round_list(["alice"])
    text = signed_text(closed, KEY)
    assert read_statement(RoundList, text) == closed
    assert read_statement(Pointer, signed_text(pointer(loss=2), KEY)) == pointer()
    for changed in (
        text.replace(b'"alice"', b'"carol"'),
        text.replace(b'"round": 8', b'"round": 9'),
        text.replace(KEY.public.encode(), OTHER.public.encode()),
        text.replace(b'"deadline": 9.0', b'"deadline": NaN'),
        text.replace(b'"deadline": 9.0', b'"deadline": "9"'),
        text.replace(b'"deadline": 9.0', b'"deadline": 9.0, "more": 1'),
        text[:-30],
        b"[" * 10_000,
        b" " * (RoundList.MOST_BYTES + 1),
    ):
        assert changed != text
        with pytest.raises(StatementRefusedError):
            read_statement(RoundList, changed)


@pytest.mark.parametrize(
    "change",
    [
        dict(digest="x"),
        dict(state="A" * 64),
        dict(samples=0),
        dict(samples=700),
        dict(size=0),
        dict(user="a" * 300),
        dict(loss=float("nan")),
        dict(samples_per_second=float("inf")),
    ],
)
def test_an_impossible_pointer_is_no_statement(change):
    with pytest.raises((StatementRefusedError, ValueError)):
        read_statement(Pointer, signed_text(pointer(**change), KEY))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(swarm_id="fish"), "expected birds"),
        (dict(user="bob"), "signed for bob"),
        (dict(round=7), "of round 7; expected 8"),
        (dict(state=AFTER), "from the state"),
        (dict(size=200), "200 bytes; expected 100 to 199"),
    ],
)
def test_what_is_not_of_this_round_is_refused_with_its_reason(change, words):
    assert refusal(pointer(), "alice", TERMS) is None
    assert words in refusal(pointer(**change), "alice", TERMS)


def test_the_draw_is_the_same_everywhere_fair_and_another_one_in_each_round():
    users = [f"user{number}" for number in range(64)]
    assert drawn_order(STATE, users) == drawn_order(STATE, reversed(users)) != drawn_order(AFTER, users)
    drawn = Counter(user for number in range(500) for user in drawn_order(f"{number:064x}", users)[:32])
    assert all(180 < drawn[user] < 320 for user in users)


def test_nobody_weighs_more_than_some_medians():
    assert weights_of([pointer(samples=10), pointer(samples=20), pointer(samples=630)], 8.0) == [10.0, 20.0, 160.0]


def test_a_window_without_contributions_is_followed_by_another():
    assert next_deadline(100.0, 30.0, 99.0) == 100.0
    assert next_deadline(100.0, 30.0, 101.0) == 130.0
    assert next_deadline(100.0, 30.0, 160.0) == 160.0


def test_a_list_whose_members_were_not_drawn_is_false():
    users = drawn_order(STATE, [f"user{number}" for number in range(5)])
    assert fault_of(round_list(users[:3], users[3:]), TERMS, 3) is None
    assert "draws" in fault_of(round_list(users[2:], users[:2]), TERMS, 3)
    assert "draws" in fault_of(round_list(users[:3][::-1]), TERMS, 3)
    assert "4 members" in fault_of(round_list(users[:4]), TERMS, 3)
    assert "0 members" in fault_of(round_list([]), TERMS, 3)
    assert "round 8" in fault_of(round_list(users[:1]), dataclasses.replace(TERMS, round=9), 3)
    assert "from the state" in fault_of(round_list(users[:1]), dataclasses.replace(TERMS, state=AFTER), 3)
    alike = tuple(
        SignedPointer(pointer=found, signature=signature_of(found, KEY))
        for found in (pointer(user, 1) for user in users[:2])
    )
    assert "twice" in fault_of(round_list([], members=alike), TERMS, 3)


def test_who_was_not_drawn_does_not_send_the_same_again_and_who_was_late_does():
    late = (Candidate(user="late", reason="3 s late"),)
    closed = round_list(["alice", "bob"], ["carol"])
    closed = dataclasses.replace(closed, left_out=closed.left_out + late)
    assert not takes_back(closed, "carol")
    assert takes_back(closed, "late") and takes_back(closed, "nobody")


def test_a_list_with_a_pointer_that_nobody_signed_or_one_user_twice_is_none():
    stranger = dataclasses.replace(member("alice", 1), signature=signature_of(pointer("alice", 2), KEY))
    for members in ((stranger,), (member("alice", 1), member("alice", 2))):
        with pytest.raises(ValueError):
            round_list([], members=members)
