"""What a peer decides at the end of an epoch, and what another can have gathered: the decisions, without a network."""

import dataclasses

import pytest
from hivemind.optim.progress_tracker import LocalTrainingProgress
from swarm_of_processes import tiny_run

from pipelines.core.averaging.figures import SharedFigures
from pipelines.core.epoch.progress_tracking import plausible_samples
from pipelines.core.epoch.round_policy import (
    MAX_FAILED_LOADS,
    WITNESSES_TO_LEAVE,
    RoundPolicy,
    Search,
    Setback,
    after_setback,
    epoch_to_adopt,
    is_incomplete,
    keeps_gradient,
)
from pipelines.core.swarm.node import readable_peer_id

POLICY = RoundPolicy(delays_averaging=False, matchmaking_seconds=3.0)
DELAYED = dataclasses.replace(POLICY, delays_averaging=True)


def test_the_policy_is_that_of_the_run():
    run = tiny_run(delay_optimizer_step=True, delay_gradient_averaging=True)
    expected = RoundPolicy(delays_averaging=True, matchmaking_seconds=run.matchmaking_seconds)
    assert RoundPolicy.of(run, searches_early=True) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(num_rounds=1), False),
        (dict(num_rounds=1, share_averaged=0.95), False),
        (dict(), True),
        (dict(num_rounds=1, num_incomplete_rounds=1, share_averaged=0.5), True),
    ],
    ids=["a round like others", "a small part that nobody has", "no round at all", "too small a share here"],
)
def test_a_round_is_judged_by_its_figures(changes, expected):
    before = SharedFigures().read()
    assert is_incomplete(before, dataclasses.replace(before, **changes)) == expected


@pytest.mark.parametrize(
    ("search", "seconds_left", "expected"),
    [
        (Search.NONE, 2.0, True),
        (Search.NONE, 4.0, False),
        (Search.OVER, 2.0, True),
        (Search.OPEN, 2.0, False),
        (Search.IN_ROUND, 2.0, False),
    ],
)
def test_a_peer_looks_for_one_group_at_a_time_and_shortly_before_the_end(search, seconds_left, expected):
    assert POLICY.begins_search(search, seconds_left) == expected
    late = dataclasses.replace(POLICY, searches_early=False)
    assert not late.begins_search(search, seconds_left), "what members contribute is known at the end"


@pytest.mark.parametrize(
    ("num_peers", "num_failures", "knows_somebody", "expected"),
    [
        (0, 0, False, True),
        (1, 0, True, True),
        (2, 0, False, False),
        (2, 2, False, False),
        (2, 3, False, True),
        (2, 50, True, False),
    ],
)
def test_a_peer_steps_along_its_own_gradient_only_if_it_is_alone(num_peers, num_failures, knows_somebody, expected):
    """Whoever only claims to train, under ever new keys, does not stop a peer that trains alone."""
    assert POLICY.is_alone(num_peers, num_failures=num_failures, knows_somebody=knows_somebody) == expected


@pytest.mark.parametrize(
    ("policy", "local_epoch", "missed", "outvoted", "expected"),
    [
        (POLICY, 5, False, False, False),
        (POLICY, 4, False, False, True),
        (DELAYED, 4, False, False, False),
        (DELAYED, 3, False, False, True),
        (POLICY, 5, True, False, True),
        (POLICY, 5, False, True, True),
    ],
    ids=["in step", "behind", "delayed, one behind", "delayed, two behind", "missed a round", "outvoted"],
)
def test_a_peer_takes_the_state_over_when_the_others_have_gone_on(policy, local_epoch, missed, outvoted, expected):
    assert policy.takes_state_over(local_epoch, 5, has_missed_round=missed, outvoted=outvoted) == expected


def test_one_missing_step_is_overlooked_and_more_are_not():
    assert [epoch_to_adopt(epoch, 7) for epoch in (5, 6, 7, 8)] == [5, 7, 7, 8]


def test_a_gradient_counts_that_is_late_by_one_epoch_unless_its_state_was_outvoted():
    assert keeps_gradient(4, 5, outvoted=False)
    assert not keeps_gradient(4, 6, outvoted=False) and not keeps_gradient(4, 5, outvoted=True)


def record(peer_id=b"a", samples=10, speed=2.0, time=100.0):
    return LocalTrainingProgress(
        peer_id=peer_id, epoch=3, samples_accumulated=samples, samples_per_second=speed, time=time, client_mode=False
    )


def test_a_peer_can_have_gathered_twice_what_its_record_and_its_speed_say():
    assert plausible_samples([record()], now=105.0, seconds_to_come=10.0) == {b"a": 2 * (10 + 15 * 2.0)}
    assert plausible_samples([record(time=200.0)], now=105.0, seconds_to_come=0.0) == {b"a": 20.0}, "a clock ahead"


def test_nobody_takes_weight_from_another_by_signing_a_record_in_its_name():
    records = [record(), record(samples=0, speed=0.0)]
    assert plausible_samples(records, 100.0, 0.0) == plausible_samples(records[:1], 100.0, 0.0)


def test_what_a_stranger_says_of_its_samples_gives_it_no_weight():
    records = [record(b"known"), record(b"stranger", samples=10**9)]
    assert set(plausible_samples(records, 100.0, 0.0, {readable_peer_id(b"known")})) == {b"known"}


def test_a_speed_without_bound_bounds_nothing_and_is_left_out():
    assert plausible_samples([record(speed=float("inf"))], 105.0, 10.0) == {}


@pytest.mark.parametrize(
    ("num_failed", "figures", "expected"),
    [
        (1, dict(is_behind=True, was_offered=True, num_witnesses=9), Setback.TRY_AGAIN),
        (1, dict(is_behind=True, was_offered=False, num_witnesses=9), Setback.DOUBT),
        (1, dict(is_behind=False, was_offered=False, num_witnesses=9), Setback.TRY_AGAIN),
        (MAX_FAILED_LOADS, dict(is_behind=True, was_offered=True, num_witnesses=WITNESSES_TO_LEAVE), Setback.LEAVE),
        (MAX_FAILED_LOADS, dict(is_behind=True, was_offered=True, num_witnesses=1), Setback.DOUBT),
        (MAX_FAILED_LOADS, dict(is_behind=False, was_offered=True, num_witnesses=WITNESSES_TO_LEAVE), Setback.LEAVE),
        (MAX_FAILED_LOADS, dict(is_behind=False, was_offered=False, num_witnesses=0), Setback.DOUBT),
    ],
    ids=[
        "behind",
        "there is no such state",
        "outvoted, and nobody serves the other state at the moment",
        "behind for good",
        "one peer alone makes nobody leave",
        "outvoted, and the other state cannot be downloaded",
        "outvoted, and nobody is left",
    ],
)
def test_a_peer_that_cannot_get_the_others_state_does_not_compute_for_nothing_for_ever(num_failed, figures, expected):
    assert after_setback(num_failed, **figures) is expected
