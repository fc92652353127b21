import threading

import pytest
from clocks import Clock

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Span
from pipelines.features.ledger.batch_gradients import BatchGradient
from pipelines.features.ledger.leases.lease_tracker import SECONDS_BETWEEN_LEASES, LeaseTracker
from pipelines.features.ledger.records import MOST_EPOCHS_REPORTED, MOST_SPANS_REPORTED


@pytest.fixture
def clock():
    return Clock(0.0)


@pytest.fixture
def tracker(clock):
    return LeaseTracker(BlockOrder(lambda: 3, lambda shard: [8, 8], "own"), clock, patience_seconds=30.0)


LEASE = [Span(0, 1, 0, 0, 10), Span(0, 2, 1, 4, 20)]


def batch(*spans):
    return BatchGradient(model_epoch=0, spans=spans)


def read_all(tracker):
    spans = []
    while (span := tracker.next_span(is_needed=True)) is not None:
        spans.append(span)
    return spans


def test_everything_on_the_lease_is_read_once(tracker):
    assert read_all(tracker) == []
    tracker.renew(LEASE, -1)
    assert read_all(tracker) == LEASE
    tracker.renew([*LEASE, Span(1, 0, 0, 0, 5)], -1)
    assert read_all(tracker) == [Span(1, 0, 0, 0, 5)] and tracker.num_free == 0


def test_what_a_round_has_averaged_is_reported_until_it_is_booked(tracker):
    tracker.renew(LEASE, -1)
    read_all(tracker)
    tracker.gather(batch(Span(0, 1, 0, 0, 4)))
    tracker.gather(batch(Span(0, 1, 0, 4, 6)))
    assert tracker.report() == {}
    tracker.round_began()
    tracker.gather(batch(Span(0, 1, 0, 6, 8)))
    tracker.round_averaged(5)
    assert tracker.report() == {5: [Span(0, 1, 0, 0, 6)]}, "neighbours are one span"
    tracker.round_began()
    tracker.round_averaged(6)
    assert tracker.report() == {5: [Span(0, 1, 0, 0, 6)], 6: [Span(0, 1, 0, 6, 8)]}
    assert read_all(tracker) == [], "it is not read again while it is on the lease still"
    tracker.renew([Span(0, 1, 0, 6, 10), LEASE[1]], 5)
    assert tracker.report() == {6: [Span(0, 1, 0, 6, 8)]} and read_all(tracker) == []


def test_a_round_that_failed_goes_into_the_next_one(tracker):
    tracker.renew(LEASE, -1)
    read_all(tracker)
    tracker.gather(batch(Span(0, 1, 0, 0, 4)))
    tracker.round_began()
    tracker.gradients_kept()
    tracker.gather(batch(Span(0, 1, 0, 4, 5)))
    tracker.round_began()
    tracker.round_averaged(2)
    assert tracker.report() == {2: [Span(0, 1, 0, 0, 5)]}


@pytest.mark.parametrize("loss", ["drop", "gradients_lost", "round_lost"])
def test_what_was_lost_is_read_again(tracker, loss):
    tracker.renew(LEASE, -1)
    read_all(tracker)
    lost = Span(0, 1, 0, 2, 6)
    if loss == "drop":
        tracker.drop([lost])
    else:
        tracker.gather(batch(lost))
        tracker.round_began()
        if loss == "round_lost":
            tracker.gather(batch(Span(0, 2, 1, 4, 8)))
        getattr(tracker, loss)()
    assert read_all(tracker) == [lost]
    if loss == "round_lost":  # what was gathered since then is not
        tracker.round_began()
        tracker.round_averaged(1)
        assert tracker.report() == {1: [Span(0, 2, 1, 4, 8)]}


def test_without_a_lease_a_peer_waits_and_then_reads_in_an_order_of_its_own(tracker, clock):
    clock.now = 29.0
    assert tracker.next_span(is_needed=True) is None
    clock.now = 31.0
    first = tracker.next_span(is_needed=True)
    assert first.num_records == 8 and first.pass_number == 0


def test_who_has_read_its_lease_goes_on_after_a_moment_until_there_is_more(tracker, clock):
    tracker.renew([Span(4, 1, 0, 0, 10)], -1)
    assert read_all(tracker) == [Span(4, 1, 0, 0, 10)]
    clock.now = SECONDS_BETWEEN_LEASES + 1
    assert tracker.next_span(is_needed=True) is None, "there are records that were read ahead"
    for start in (0, 4):
        tracker.gather(batch(Span(4, 1, 0, start, start + 4)))
    assert tracker.next_span(is_needed=True) is None, "it has just computed a gradient"
    clock.now = 2 * SECONDS_BETWEEN_LEASES + 1
    assert tracker.next_span(is_needed=False) is None
    own = [tracker.next_span(is_needed=True), tracker.next_span(is_needed=True)]
    assert {span.pass_number for span in own} == {4}, "it goes on in the pass that all are in"
    tracker.renew([], -1)
    assert tracker.next_span(is_needed=True) is None, "the anchor is there: it waits for a moment again"
    tracker.renew([Span(4, 1, 0, 0, 10), Span(4, 2, 0, 0, 10)], -1)
    left = [span for span in (Span(4, 2, 0, 0, 10),) if span.block not in {one.block for one in own}]
    assert [tracker.next_span(is_needed=True) for _ in left] == left
    assert not left or tracker.next_span(is_needed=True) is None


def twelve(tracker):
    spans = []
    for _ in range(12):
        spans.append(tracker.next_span(is_needed=True))
        tracker.gather(batch(spans[-1]))
    return tuple(spans)


def test_peers_without_an_anchor_do_not_all_read_the_same(clock):
    books = [
        LeaseTracker(BlockOrder(lambda: 6, lambda shard: [8, 8], seed), clock, 30.0, waits_first=False)
        for seed in ("a", "b", "c")
    ]
    assert len({twelve(tracker) for tracker in books}) == 3


def test_a_report_fits_a_record_and_has_the_newest(tracker):
    tracker.renew([Span(0, 1, 0, 0, 100_000)], -1)
    read_all(tracker)
    for epoch in range(100):
        starts = range(200 * epoch, 200 * epoch + 200, 20)
        tracker.gather(batch(*(Span(0, 1, 0, start, start + 10) for start in starts)))
        tracker.round_began()
        tracker.round_averaged(epoch)
    report = tracker.report()
    assert max(report) == 99 and len(report) <= MOST_EPOCHS_REPORTED
    assert sum(map(len, report.values())) <= MOST_SPANS_REPORTED


def test_who_waits_hears_of_a_lease_and_of_the_end(tracker):
    found, waits = [], threading.Event()

    def read():
        waits.set()
        while (span := tracker.next_span(is_needed=True)) is None and tracker.wait():
            pass
        found.append(span)
        while tracker.wait():
            pass

    reader = threading.Thread(target=read)
    reader.start()
    waits.wait()
    tracker.renew(LEASE, -1)
    tracker.close()
    reader.join(10)
    assert not reader.is_alive() and found[0] in (LEASE[0], None)
