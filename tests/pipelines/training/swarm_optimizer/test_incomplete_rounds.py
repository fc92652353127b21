"""When parameters may be apart, and what a peer can have gathered: the decisions, without a network."""

import dataclasses

import pytest
from hivemind.optim.progress_tracker import LocalTrainingProgress

from pipelines.training.averaging.figures import SharedFigures
from pipelines.training.swarm_optimizer.incomplete_rounds import is_incomplete
from pipelines.training.swarm_optimizer.progress_tracking import plausible_samples


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(num_rounds=1), False),
        (dict(), True),
        (dict(num_rounds=1, num_incomplete_rounds=1), True),
        (dict(num_rounds=1, num_senders_lost=1), True),
    ],
    ids=[
        "a round like others",
        "no round at all",
        "too small a share here",
        "another peer lacks what was reduced here",
    ],
)
def test_parameters_may_be_apart_after(changes, expected):
    before = SharedFigures().read()
    assert is_incomplete(before, dataclasses.replace(before, **changes)) == expected


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
