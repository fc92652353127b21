"""What members claim of their links counts as far as the others have seen them deliver."""

import math

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.utils import MSGPackSerializer

from pipelines.core.averaging.group.group_data import ID_BYTES, MOST_BYTES, mode_of
from pipelines.features.bandwidth.claims import (
    GROWTH,
    MIN_ROUNDS,
    MOST_ROUNDS,
    MOST_SEEN,
    Seen,
    Statement,
    Witness,
    members_of,
    read_statement,
    told,
)
from pipelines.features.bandwidth.shares import FASTEST_MBIT, seconds_needed, shares_of

MOST_SECONDS = 600.0
PEERS = tuple(f"peer number {number}".encode() for number in range(5))
HIVEMINDS = MSGPackSerializer.dumps([None, AveragingMode.NODE.value, MSGPackSerializer.dumps(None)])


def named(peer: bytes) -> bytes:
    return peer[-ID_BYTES:]


def statement(up, *, seen=None, mode=AveragingMode.NODE, down=None) -> Statement:
    return Statement(mode=mode, up=up, down=down, seen=seen or {})


def everybody_saw(mbit: float, *, but: bytes = b"", rounds: int = MIN_ROUNDS) -> dict[bytes, Seen]:
    return {named(peer): Seen(num_rounds=rounds, mbit=mbit) for peer in PEERS if peer != but}


def test_what_is_told_is_read_again_and_understood_by_the_group():
    witness = Witness()
    for rate in (3.0, 5.0, 4.0):
        witness.note_round({PEERS[1]: rate, PEERS[2]: 7.25})
    gathered = told(HIVEMINDS, 12.5, 80.0, witness.report())
    assert mode_of(gathered) == AveragingMode.NODE
    assert read_statement(gathered) == Statement(
        mode=AveragingMode.NODE,
        up=12.5,
        down=80.0,
        seen={named(PEERS[1]): Seen(num_rounds=3, mbit=5.0), named(PEERS[2]): Seen(num_rounds=3, mbit=7.25)},
    )


def test_a_witness_forgets_old_rounds_and_the_peers_it_has_not_met_for_longest():
    witness = Witness()
    for _ in range(MOST_ROUNDS):
        witness.note_round({PEERS[0]: 100.0})
    for _ in range(MOST_ROUNDS):
        witness.note_round({PEERS[0]: 1.0})
    assert witness.report() == [[named(PEERS[0]), MOST_ROUNDS, 1.0]]
    witness.note_round({f"{number:08d}".encode(): 1.0 for number in range(MOST_SEEN)})
    report = witness.report()
    assert len(report) == MOST_SEEN
    assert named(PEERS[0]) not in [peer for peer, *_ in report]
    assert len(told(HIVEMINDS, 1.0, 1.0, report)) < MOST_BYTES


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        [],
        [None],
        [math.nan, []],
        ["fast", [[b"12345678", 2, 5.0]]],
        [1e300, [[b"short", 2, 5.0], [b"12345678", 10**9, 5.0], [b"12345678", 2, math.nan], ["12345678", 2, 5.0]]],
        [-3, [[[], {}, ()]]],
        [5.0, 3],
        [5.0, [[1, 2]]],
        {"a": 1},
    ],
    ids=["none", "number", "empty", "short", "nan", "words", "impossible", "nested", "no list", "pairs", "map"],
)
def test_a_message_that_no_honest_peer_sends_says_nothing(message):
    gathered = MSGPackSerializer.dumps([None, AveragingMode.NODE.value, MSGPackSerializer.dumps(message)])
    read = read_statement(gathered)
    assert read.mode == AveragingMode.NODE
    assert all(len(peer) == ID_BYTES and math.isfinite(seen.mbit) for peer, seen in read.seen.items())
    assert read.down is None or (math.isfinite(read.down) and read.down > 0)
    shares = shares_of(members_of(PEERS[:3], [read, statement(10.0), statement(None)]))
    assert sum(shares) == pytest.approx(1)


def test_a_claim_counts_after_enough_witnessed_rounds():
    slow = [statement(10.0, seen=everybody_saw(2.5, rounds=MIN_ROUNDS - 1)) for _ in PEERS]
    assert not any(member.is_proven for member in members_of(PEERS, slow))
    known = [statement(10.0, seen=everybody_saw(2.5)) for _ in PEERS]
    assert all(member.is_proven and member.link.up == 10.0 for member in members_of(PEERS, known))


def test_a_claim_counts_up_to_a_multiple_of_what_the_others_have_seen():
    told_by_all = [statement(10.0, seen=everybody_saw(2.5)) for _ in PEERS[1:]]
    liar = statement(5000.0, seen=everybody_saw(2.5))
    assert members_of(PEERS, [liar, *told_by_all])[0].link.up == pytest.approx(GROWTH * 2.5 * 4)


def test_a_minority_of_witnesses_cannot_vouch_for_each_other():
    honest = everybody_saw(2.5) | {named(PEERS[0]): Seen(num_rounds=MIN_ROUNDS, mbit=1.0)}
    friend = honest | {named(PEERS[0]): Seen(num_rounds=MIN_ROUNDS, mbit=1e5)}
    group = [statement(1e5, seen=honest), statement(10.0, seen=friend), *[statement(10.0, seen=honest)] * 3]
    # Three saw 1 Mbit/s, and of the friend's report twice that counts.
    assert members_of(PEERS, group)[0].link.up == pytest.approx(GROWTH * 5)
    unknown = {peer: seen for peer, seen in honest.items() if peer != named(PEERS[0])}
    group = [statement(1e5, seen=unknown), statement(10.0, seen=friend), *[statement(10.0, seen=unknown)] * 3]
    assert not members_of(PEERS, group)[0].is_proven


def test_nobody_is_a_witness_for_itself():
    boaster = everybody_saw(1e5, rounds=MOST_ROUNDS)
    group = [statement(1e5, seen=boaster), *[statement(10.0) for _ in PEERS[1:]]]
    assert not members_of(PEERS, group)[0].is_proven


@pytest.mark.parametrize("claim", [1e30, 1e308, FASTEST_MBIT, 10**400])
def test_newcomers_with_huge_claims_come_to_no_more_than_the_equal_share(claim):
    seen = everybody_saw(2.5, but=PEERS[4])
    group = [*[statement(10.0, seen=seen)] * 4, statement(min(claim, 1e308))]
    assert shares_of(members_of(PEERS, group))[4] <= 1 / 5 + 1e-9


def test_who_says_nothing_is_taken_for_the_usual_and_a_group_that_says_nothing_is_equal():
    seen = everybody_saw(2.5, but=PEERS[4])
    members = members_of(PEERS, [*[statement(10.0, seen=seen)] * 4, statement(None)])
    assert members[4].link.up == 10.0
    assert shares_of(members) == pytest.approx([0.25] * 4 + [0.0]), "nobody has seen it yet"
    assert shares_of(members_of(PEERS, [statement(None)] * 5)) == pytest.approx([0.2] * 5)


def test_newcomers_can_be_slow_but_not_faster_than_the_usual():
    members = members_of(PEERS, [statement(1000.0), *[statement(10.0)] * 3, statement(1.0)])
    assert [member.link.up for member in members] == [10.0, 10.0, 10.0, 10.0, 1.0]


def test_clients_and_listeners_do_not_reduce_and_if_all_say_zero_the_nodes_do():
    group = [
        statement(10.0),
        statement(10.0, mode=AveragingMode.CLIENT),
        statement(0.0, mode=AveragingMode.AUX),
        statement(10.0, mode=AveragingMode.AUX),
    ]
    members = members_of(PEERS[:4], group)
    assert [(member.sends, member.reduces) for member in members] == [
        (True, True),
        (True, False),
        (False, False),
        (False, True),
    ]
    zeros = members_of(PEERS[:3], [statement(0.0), statement(0.0), statement(0.0, mode=AveragingMode.AUX)])
    assert [member.reduces for member in zeros] == [True, True, False]


def test_a_late_peer_counts_at_what_it_delivered_and_one_that_only_announces_a_slow_link_makes_nobody_wait():
    slow, fast = PEERS[0], PEERS[1:4]
    group = (slow, *fast)
    seen = {named(peer): Seen(num_rounds=MIN_ROUNDS, mbit=20.0) for peer in fast}
    told_by_fast = [statement(60.0, seen=seen) for _ in fast]
    alone = seconds_needed(members_of(fast, told_by_fast), 60.0, MOST_SECONDS)
    # Each of three sends two thirds of the vector, and answers to two others: 4/3 of it at 2 x 20 Mbit/s.
    assert alone == pytest.approx(2.0)
    for announced in (0.01, 0.1, 2.0, None):
        assert seconds_needed(members_of(group, [statement(announced), *told_by_fast]), 60.0, MOST_SECONDS) <= alone

    witness = Witness()
    witness.note_round({slow: 50.0})
    witness.note_late({slow: 0.5})
    assert witness.report() == [[named(slow), 0, 0.5]]
    late = {named(slow): Seen(num_rounds=0, mbit=0.5)}
    told_late = [statement(60.0, seen=seen | late) for _ in fast]
    members = members_of(group, [statement(None), *told_late])
    assert members[0].link.up == members[0].seen_mbit == pytest.approx(3 * 0.5) and not members[0].is_proven
    # It reduces nothing, and its own vector takes longest.
    assert seconds_needed(members, 60.0, MOST_SECONDS) == pytest.approx(60.0 / 1.5)
    assert seconds_needed(members, 60.0, 30.0) <= alone, "who needs longer than a round may take"
    one_witness = [told_late[0], *told_by_fast[1:]]
    assert seconds_needed(members_of(group, [statement(None), *one_witness]), 60.0, MOST_SECONDS) <= alone
    witness.note_late({slow: 0.4})
    assert witness.report() == [[named(slow), 0, 0.25]], "late again, with the time for 0.5"
    witness.note_round({slow: 4.0})
    assert witness.report() == [[named(slow), 1, 4.0]]


def test_who_only_listens_is_no_witness_that_is_missing():
    pair = (PEERS[0], PEERS[1], PEERS[2])
    each = [statement(10.0, seen={named(other): Seen(num_rounds=MIN_ROUNDS, mbit=5.0)}) for other in pair[1::-1]]
    members = members_of(pair, [*each, statement(0.0, mode=AveragingMode.AUX)])
    assert [member.is_proven for member in members] == [True, True, False]
    assert seconds_needed(members, 10.0, MOST_SECONDS) is not None


def test_who_says_nothing_of_a_link_is_waited_for_at_what_it_has_delivered():
    seen = {named(peer): Seen(num_rounds=1, mbit=20.0) for peer in PEERS[:3]}
    members = members_of(PEERS[:3], [statement(None, seen=seen)] * 3)
    assert seconds_needed(members, 60.0, MOST_SECONDS) == pytest.approx(60.0 * (4 / 3) / 40.0)


def test_of_two_the_one_that_was_late_has_the_time_for_its_own_vector():
    """In a round that failed, only the slower one's rate was seen: the next one lasts as long as that takes."""
    late = {named(PEERS[1]): Seen(num_rounds=0, mbit=3.0)}
    members = members_of(PEERS[:2], [statement(40.0, seen=late), statement(None)])
    assert seconds_needed(members, 60.0, MOST_SECONDS) == pytest.approx(60.0 / 3.0)
    assert seconds_needed(members, 60.0, 19.0) is None, "who needs longer than a round may take"


def test_nothing_is_known_of_a_group_of_strangers():
    assert seconds_needed(members_of(PEERS, [statement(0.01), *[statement(100.0)] * 4]), 1000.0, MOST_SECONDS) is None
