"""What a peer decides at the end of an epoch, and what another can have gathered: the decisions, without a network."""

import dataclasses

import pytest
from hivemind.optim.progress_tracker import LocalTrainingProgress
from swarm_of_processes import tiny_run

from pipelines.training.averaging.figures import SharedFigures
from pipelines.training.swarm_optimizer.progress_tracking import plausible_samples
from pipelines.training.swarm_optimizer.round_policy import (
    GradientSource,
    RoundPolicy,
    Search,
    epoch_of_call,
    epoch_to_adopt,
    is_incomplete,
    keeps_gradient,
)

POLICY = RoundPolicy(delays_averaging=False, average_state_every=8, matchmaking_seconds=3.0)
DELAYED = dataclasses.replace(POLICY, delays_averaging=True)


def test_the_policy_is_that_of_the_run():
    run = tiny_run(average_state_every=7, delay_optimizer_step=True, delay_gradient_averaging=True)
    assert RoundPolicy.of(run) == RoundPolicy(
        delays_averaging=True, average_state_every=7, matchmaking_seconds=run.matchmaking_seconds
    )


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


@pytest.mark.parametrize("search", Search)
@pytest.mark.parametrize("num_peers", [0, 1, 2])
def test_a_peer_steps_along_its_own_gradient_if_it_is_alone_or_its_group_is_used_up(search, num_peers):
    has_round = num_peers == 2 and search in (Search.NONE, Search.OPEN)
    assert POLICY.gradient_source(search, num_peers) is (GradientSource.ROUND if has_round else GradientSource.OWN)


@pytest.mark.parametrize(
    ("next_epoch", "num_peers", "calls", "is_averaging", "expected"),
    [
        (16, 2, (), False, True),
        (15, 2, (), False, False),
        (15, 2, (15,), False, True),
        (15, 2, (17,), False, False),
        (16, 1, (16,), False, False),
        (16, 2, (16,), True, False),
    ],
    ids=["regular", "in between", "called", "called for later", "alone", "still at it"],
)
def test_the_state_is_averaged_at_regular_epochs_and_when_called_to(
    next_epoch, num_peers, calls, is_averaging, expected
):
    assert POLICY.averages_state(next_epoch, num_peers, calls, is_averaging=is_averaging) == expected


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


@pytest.mark.parametrize(
    ("local_epoch", "state_epoch", "expected"), [(9, 9, False), (9, 8, True), (14, 13, False), (10, 9, True)]
)
def test_who_lacks_a_step_stays_behind_unless_the_state_is_averaged_soon(local_epoch, state_epoch, expected):
    assert POLICY.stays_behind(local_epoch, state_epoch) == expected


def test_a_call_leaves_an_epoch_for_it_to_arrive():
    assert epoch_of_call(4, 4) == 6 and epoch_of_call(3, 5) == 7


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


def test_a_speed_without_bound_bounds_nothing_and_is_left_out():
    assert plausible_samples([record(speed=float("inf"))], 105.0, 10.0) == {}
