"""Which state a newcomer takes when peers disagree, and whom it asks for it."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest

from pipelines.core.state.votes import (
    count_votes,
    cut_into_jobs,
    donors_in_turn,
    electorate,
    newest_plausible_epoch,
)

HONEST, OTHER = "a" * 64, "b" * 64


def claims(*values, first_key=0):
    """Return claims by key from (epoch, digest) or (epoch, digest, shares)."""
    return {
        bytes([first_key + number]): SimpleNamespace(
            peer_id=f"peer{first_key + number}", epoch=value[0], digest=value[1], shares=(*value, True)[2]
        )
        for number, value in enumerate(values)
    }


def test_the_digest_that_most_trainers_name_is_taken_and_the_others_are_named():
    votes = claims((5, HONEST), (5, OTHER), (5, HONEST))
    verdict = count_votes(votes, trainers=set(votes))
    assert (verdict.epoch, verdict.digest, verdict.num_votes, verdict.num_voters) == (5, HONEST, 2, 3)
    assert verdict.donors == ("peer0", "peer2")
    assert verdict.outvoted == ("peer1",)
    assert verdict.is_clear
    assert str(verdict) == "epoch 5, named by 2 of 3"


def test_those_who_do_not_train_have_no_vote_but_may_hand_the_state_out():
    votes = claims((5, HONEST), (5, HONEST), (5, OTHER), (5, OTHER), (5, OTHER), (5, HONEST))
    verdict = count_votes(votes, trainers={bytes([0]), bytes([1]), bytes([2])})
    assert (verdict.digest, verdict.num_votes, verdict.num_voters) == (HONEST, 2, 3)
    assert verdict.donors == ("peer0", "peer1", "peer5")


def test_without_trainers_the_auxiliary_peers_state_is_taken():
    assert count_votes(claims((5, HONEST)), trainers={b"another"}).digest == HONEST
    assert count_votes({}, trainers={b"another"}) is None


def test_peers_behind_a_firewall_vote_without_being_asked():
    votes = claims((5, HONEST, False), (5, HONEST, False), (5, HONEST), (5, OTHER), (5, OTHER))
    verdict = count_votes(votes, trainers=set(votes))
    assert (verdict.digest, verdict.num_votes, verdict.donors) == (HONEST, 3, ("peer2",))
    assert count_votes(claims((5, HONEST, False)), trainers=set()) is None


def test_the_newest_state_is_taken_among_equals_and_the_votes_are_not_clear():
    verdict = count_votes(claims((5, HONEST), (6, OTHER)), trainers=set())
    assert (verdict.epoch, verdict.is_clear, verdict.outvoted) == (6, False, ())


@pytest.mark.parametrize(
    ("states", "is_decided"),
    [
        ([(5, HONEST), (6, OTHER)], False),
        ([(5, HONEST), (6, OTHER), (6, "c")], False),
        ([(6, HONEST), (6, OTHER), (6, "c")], True),
        ([(5, HONEST), (5, HONEST), (6, OTHER)], True),
        ([(5, HONEST), (6, OTHER), (6, OTHER), (6, "c")], False),
        ([(6, HONEST), (6, HONEST), (6, OTHER), (6, "c")], True),
        ([(5, HONEST), (6, "c"), (6, OTHER), (6, "d"), (6, "e")], True),
    ],
)
def test_votes_are_waited_for_as_long_as_they_can_make_a_majority(states, is_decided):
    votes = claims(*states)
    assert count_votes(votes, trainers=set(votes)).is_decided is is_decided


def test_an_epoch_that_the_swarm_cannot_have_reached_wins_no_tie_and_is_named():
    verdict = count_votes(claims((5, HONEST), (6, OTHER), (10**9, OTHER)), trainers=set())
    assert (verdict.epoch, verdict.outvoted) == (6, ("peer2",))
    assert newest_plausible_epoch([]) == 0
    assert newest_plausible_epoch([7]) == 23
    assert newest_plausible_epoch([3, 10**9]) == 19


def test_a_state_that_was_found_unusable_is_left_to_its_voters():
    votes = claims((5, OTHER), (5, OTHER), (5, HONEST))
    assert count_votes(votes, trainers=set(votes), refused={OTHER}).digest == HONEST
    assert count_votes(votes, trainers=set(votes), refused={OTHER, HONEST}) is None


def test_newcomers_spread_over_the_donors():
    verdict = count_votes(claims(*[(5, HONEST)] * 4), trainers=set())
    nobody = frozenset().__contains__
    first = Counter(donors_in_turn(verdict, (), random.Random(seed), nobody)[0] for seed in range(400))
    assert set(first) == set(verdict.donors)
    assert all(60 < number < 140 for number in first.values())
    assert sorted(donors_in_turn(verdict, {"peer1"}, random.Random(0), nobody)) == ["peer0", "peer2", "peer3"]


def test_strangers_are_asked_after_all_whom_a_newcomer_knows():
    verdict = count_votes(claims(*[(5, HONEST)] * 9), trainers=set())
    for seed in range(20):
        asked = donors_in_turn(verdict, {"peer8"}, random.Random(seed), {"peer2", "peer7", "peer8"}.__contains__)
        assert set(asked[:2]) == {"peer2", "peer7"} and len(asked) == 8


@pytest.mark.parametrize(
    ("sizes", "jobs"),
    [
        ({0: 4, 1: 4, 2: 4, 5: 4}, [[0, 1, 2], [5]]),
        ({0: 100, 1: 1, 2: 100}, [[0], [1, 2]]),
        ({3: 0}, [[3]]),
        ({}, []),
    ],
)
def test_jobs_are_runs_of_tensors_of_some_size(sizes, jobs):
    assert cut_into_jobs(sizes, job_bytes=10) == jobs


def test_one_user_has_one_vote_with_however_many_keys():
    """Seen before: seven admissions of one account outvoted three trainers and made them take over zeros."""
    votes = claims((5, HONEST), (5, HONEST), *[(5, OTHER)] * 7)
    users = dict.fromkeys(list(votes)[2:], "mallory") | {bytes([0]): "alice", bytes([1]): "bob"}
    verdict = count_votes(votes, trainers=set(votes), users=users)
    assert (verdict.digest, verdict.num_votes, verdict.num_voters) == (HONEST, 2, 3)
    assert count_votes(votes, trainers=set(votes)).digest == OTHER
    far_ahead = claims((5, HONEST), (5, HONEST), *[(10**6, OTHER)] * 7)
    assert count_votes(far_ahead, trainers=set(far_ahead), users=users).epoch == 5


def test_a_trainer_asks_those_it_has_averaged_with_and_a_newcomer_everybody():
    votes = claims((5, HONEST), (5, HONEST), *[(5, OTHER)] * 7)
    known = {claim.peer_id for claim in votes.values() if claim.digest == HONEST}
    voters = electorate(votes, set(votes), known.__contains__, believes_strangers=True)
    assert count_votes(votes, voters).digest == HONEST
    assert electorate(votes, set(votes), lambda _: False, believes_strangers=True) == set(votes)
    assert not electorate(votes, set(votes), lambda _: False, believes_strangers=False), "it asks an anchor"
    assert electorate(votes, set(votes), known.__contains__, believes_strangers=False, quorum=2)
    assert not electorate(votes, set(votes), known.__contains__, believes_strangers=False, quorum=3), "too few are left"
    assert not electorate(votes, [], known.__contains__, believes_strangers=False), "who does not train has no vote"


def test_a_users_own_machines_vote_as_most_of_them_do():
    votes = claims((5, HONEST), (5, HONEST), (5, OTHER))
    verdict = count_votes(votes, trainers=set(votes), users=dict.fromkeys(votes, "alice"))
    assert (verdict.digest, verdict.num_votes, verdict.num_voters, verdict.is_clear) == (HONEST, 1, 1, True)
