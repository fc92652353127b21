"""The figures of a chaos run, from events that are written down here."""

import pytest

from pipelines.tools.chaos.chaos_report import (
    Window,
    counted_stretches,
    falls_within_noise,
    make_report,
    median_losses,
    samples_within,
    struck_share,
)
from pipelines.tools.chaos.faults.fault_script import Fault, FaultKind


def epoch(time, *, number, num_samples=100, share=1.0, group=2, attack="", loss=1.0):
    return dict(
        event="epoch", time=time, epoch=number, new_epoch=number + 1, num_samples=num_samples, share_averaged=share,
        group_size=group, attack=attack, loss=loss,
    )  # fmt: skip


def joined(time):
    return dict(event="joined", time=time)


EVENTS = {
    "trainer-0": [joined(0.0), *(epoch(10.0 * n, number=n, loss=5.0 - n) for n in range(1, 5))],
    "trainer-1": [
        joined(0.0),
        epoch(10.0, number=1, loss=4.0),
        epoch(20.0, number=2, loss=3.2),
        epoch(30.0, number=3, group=1, share=0.0, loss=2.5),
        epoch(40.0, number=4, attack="nan", loss=1.0),
    ],
}


def test_samples_count_only_where_they_were_averaged_and_honest():
    stretches = list(counted_stretches(EVENTS))
    assert samples_within(stretches, Window(begin=0, end=20)) == 400
    assert samples_within(stretches, Window(begin=20, end=40)) == 200


def test_samples_are_spread_over_the_time_in_which_they_were_computed():
    stretches = list(counted_stretches(EVENTS))
    assert samples_within(stretches, Window(begin=5, end=7)) == pytest.approx(2 * 100 * 2 / 10)


def test_a_round_that_averaged_less_than_the_run_demands_counts_for_nothing():
    events = {"one": [joined(0.0), epoch(10.0, number=1, share=0.89), epoch(20.0, number=2, share=0.91)]}
    assert [stretch.begin for stretch in counted_stretches(events)] == [10.0]


def test_the_report_puts_the_rate_under_faults_beside_the_rate_without():
    report = make_report(
        EVENTS,
        [Fault(kind=FaultKind.NAN, at_seconds=10, duration_seconds=10, peer=1)],
        reference=Window(begin=0, end=20, busy_share=0.75),
        chaos=Window(begin=20, end=40.001),
        parameter_difference=0.0,
        num_orphans=0,
        num_unexpected_exits=0,
        num_checkpoints=3,
    )
    assert report.goodput == pytest.approx(0.5, rel=1e-3)
    assert report.reference_busy_share == 0.75
    assert report.goodput_bound == pytest.approx(0.75, rel=1e-3)
    assert (report.num_rounds, report.num_lost_rounds) == (3, 1)
    assert report.evaluation_losses == pytest.approx({2: 4.0, 3: 3.1, 4: 2.25, 5: 1.0})
    assert report.criteria == {
        "goodput at least 0.8": False,
        "evaluation loss falls within noise": True,
        "all parameters equal at the end": True,
        "no orphan process": True,
    }


@pytest.mark.parametrize(
    ("digests", "has_false_lists", "agree"),
    [(("a", "b"), False, True), (("a", "c"), False, False), (("a", "b"), True, False), ((None, None), False, None)],
)
def test_states_are_compared_epoch_by_epoch_where_they_must_be_equal(digests, has_false_lists, agree):
    def events(*ends):
        told = [epoch(10.0 * number, number=number) for number in (1, 2)]
        return [event | ({"digest": digest} if digest else {}) for event, digest in zip(told, ends, strict=True)]

    report = make_report(
        {"a": events(*(one and x for one, x in zip(digests, "ab", strict=True))), "b": events(*digests)},
        [],
        reference=Window(begin=0.0, end=1.0),
        chaos=Window(begin=1.0, end=30.0),
        parameter_difference=0.0,
        num_orphans=0,
        num_unexpected_exits=0,
        num_checkpoints=0,
        has_false_lists=has_false_lists,
    )
    assert report.states_agree is agree
    assert report.criteria.get("every epoch led all to one state") is agree
    assert report.longest_epoch_seconds == 10.0


def test_the_evaluation_loss_of_an_epoch_is_the_median_over_trainers():
    events = {str(n): [epoch(1.0, number=0, loss=loss)] for n, loss in enumerate((1.0, 2.0, 90.0))}
    assert median_losses(events) == {1: 2.0}


def test_a_killed_trainer_is_struck_until_it_has_joined_again_and_overlaps_count_once():
    faults = [
        Fault(kind=FaultKind.KILL, at_seconds=10, duration_seconds=2, peer=0),
        Fault(kind=FaultKind.PARTITION, at_seconds=20, duration_seconds=30, peer=0),
        Fault(kind=FaultKind.SLOW_LINK, at_seconds=0, duration_seconds=100, peer=1),
        Fault(kind=FaultKind.HUB_OUTAGE, at_seconds=0, duration_seconds=100),
    ]
    events = {"trainer-0": [joined(0.0), joined(130.0)], "trainer-1": [joined(0.0)]}
    assert struck_share(events, faults, Window(begin=100, end=200)) == pytest.approx(40 / 200)


@pytest.mark.parametrize(
    ("losses", "falls"),
    [
        ([4, 3, 2.5, 2.2, 2.1, 2.0], True),
        ([4, 3, 2.5, 2.2, 2.25, 2.2], True),
        ([4, 3, 2.5, 3.2, 2.1, 2.0], False),
        ([4, 4.1, 4.2, 4.3, 4.4, 4.5], False),
        ([4, 3, 2.5, float("nan"), float("nan"), float("nan")], False),
        ([4], False),
        ([], False),
    ],
)
def test_a_loss_falls_if_no_sixth_of_the_run_rises_beyond_noise(losses, falls):
    assert falls_within_noise([loss for loss in losses for _ in range(5)]) is falls


def seen_by_clients(**changes):
    values = dict(
        num_drawn=9, num_drawn_otherwise=0, num_candidates_lost=3, num_computed=4, num_computed_otherwise=0,
        num_holes=0, num_times_holes_named=0, has_computed_after_holes=False, num_false_servers=0,
        num_false_servers_named=0, num_honest_servers_named=0,
    )  # fmt: skip
    return values | changes


@pytest.mark.parametrize(
    ("seen", "unmet"),
    [
        (seen_by_clients(), []),
        (seen_by_clients(num_drawn_otherwise=1), ["what is served equals what one machine draws"]),
        (seen_by_clients(num_computed_otherwise=1), ["what is served equals what one machine draws"]),
        (seen_by_clients(num_honest_servers_named=1), ["no honest server accused"]),
        (seen_by_clients(num_false_servers=1), ["who draws falsely is named"]),
        (seen_by_clients(num_false_servers=1, num_false_servers_named=1), []),
        (seen_by_clients(num_holes=1), ["missing layers are named, and used once they are served"]),
        (seen_by_clients(num_holes=1, num_times_holes_named=2, has_computed_after_holes=True), []),
    ],
)
def test_what_customers_have_seen_is_judged_where_something_is_served(seen, unmet):
    report = make_report(
        EVENTS, [], reference=Window(begin=0, end=20), chaos=Window(begin=20, end=40), parameter_difference=0.0,
        num_orphans=0, num_unexpected_exits=0, num_checkpoints=1, serving=seen,
    )  # fmt: skip
    names = ("served", "accused", "named")
    assert [name for name, met in report.criteria.items() if not met and any(word in name for word in names)] == unmet
