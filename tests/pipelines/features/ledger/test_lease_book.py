import threading

import pytest
from clocks import Clock

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Span
from pipelines.features.ledger.batch_gradients import BatchGradient
from pipelines.features.ledger.leases.lease_book import SECONDS_BETWEEN_LEASES, LeaseBook
from pipelines.features.ledger.records import MOST_EPOCHS_REPORTED, MOST_SPANS_REPORTED


@pytest.fixture
def clock():
    return Clock(0.0)


@pytest.fixture
def book(clock):
    return LeaseBook(BlockOrder(lambda: 3, lambda shard: [8, 8], "own"), clock, patience_seconds=30.0)


LEASE = [Span(0, 1, 0, 0, 10), Span(0, 2, 1, 4, 20)]


def batch(*spans):
    return BatchGradient(model_epoch=0, spans=spans)


def read_all(book):
    spans = []
    while (span := book.next_span(is_needed=True)) is not None:
        spans.append(span)
    return spans


def test_everything_on_the_lease_is_read_once(book):
    assert read_all(book) == []
    book.renew(LEASE, -1)
    assert read_all(book) == LEASE
    book.renew([*LEASE, Span(1, 0, 0, 0, 5)], -1)
    assert read_all(book) == [Span(1, 0, 0, 0, 5)] and book.num_free == 0


def test_what_a_round_has_averaged_is_reported_until_it_is_booked(book):
    book.renew(LEASE, -1)
    read_all(book)
    book.gather(batch(Span(0, 1, 0, 0, 4)))
    book.gather(batch(Span(0, 1, 0, 4, 6)))
    assert book.report() == {}
    book.round_began()
    book.gather(batch(Span(0, 1, 0, 6, 8)))
    book.round_averaged(5)
    assert book.report() == {5: [Span(0, 1, 0, 0, 6)]}, "neighbours are one span"
    book.round_began()
    book.round_averaged(6)
    assert book.report() == {5: [Span(0, 1, 0, 0, 6)], 6: [Span(0, 1, 0, 6, 8)]}
    assert read_all(book) == [], "it is not read again while it is on the lease still"
    book.renew([Span(0, 1, 0, 6, 10), LEASE[1]], 5)
    assert book.report() == {6: [Span(0, 1, 0, 6, 8)]} and read_all(book) == []


def test_a_round_that_failed_goes_into_the_next_one(book):
    book.renew(LEASE, -1)
    read_all(book)
    book.gather(batch(Span(0, 1, 0, 0, 4)))
    book.round_began()
    book.gradients_kept()
    book.gather(batch(Span(0, 1, 0, 4, 5)))
    book.round_began()
    book.round_averaged(2)
    assert book.report() == {2: [Span(0, 1, 0, 0, 5)]}


@pytest.mark.parametrize("loss", ["drop", "gradients_lost", "round_lost"])
def test_what_was_lost_is_read_again(book, loss):
    book.renew(LEASE, -1)
    read_all(book)
    lost = Span(0, 1, 0, 2, 6)
    if loss == "drop":
        book.drop([lost])
    else:
        book.gather(batch(lost))
        book.round_began()
        if loss == "round_lost":
            book.gather(batch(Span(0, 2, 1, 4, 8)))
        getattr(book, loss)()
    assert read_all(book) == [lost]
    if loss == "round_lost":  # what was gathered since then is not
        book.round_began()
        book.round_averaged(1)
        assert book.report() == {1: [Span(0, 2, 1, 4, 8)]}


def test_without_a_lease_a_peer_waits_and_then_reads_in_an_order_of_its_own(book, clock):
    clock.now = 29.0
    assert book.next_span(is_needed=True) is None
    clock.now = 31.0
    first = book.next_span(is_needed=True)
    assert first.num_records == 8 and first.pass_number == 0


def test_who_has_read_its_lease_goes_on_after_a_moment_until_there_is_more(book, clock):
    book.renew([Span(4, 1, 0, 0, 10)], -1)
    assert read_all(book) == [Span(4, 1, 0, 0, 10)]
    clock.now = SECONDS_BETWEEN_LEASES + 1
    assert book.next_span(is_needed=True) is None, "there are records that were read ahead"
    for start in (0, 4):
        book.gather(batch(Span(4, 1, 0, start, start + 4)))
    assert book.next_span(is_needed=True) is None, "it has just computed a gradient"
    clock.now = 2 * SECONDS_BETWEEN_LEASES + 1
    assert book.next_span(is_needed=False) is None
    own = [book.next_span(is_needed=True), book.next_span(is_needed=True)]
    assert {span.pass_number for span in own} == {4}, "it goes on in the pass that all are in"
    book.renew([], -1)
    assert book.next_span(is_needed=True) is None, "the anchor is there: it waits for a moment again"
    book.renew([Span(4, 1, 0, 0, 10), Span(4, 2, 0, 0, 10)], -1)
    left = [span for span in (Span(4, 2, 0, 0, 10),) if span.block not in {one.block for one in own}]
    assert [book.next_span(is_needed=True) for _ in left] == left
    assert not left or book.next_span(is_needed=True) is None


def twelve(book):
    spans = []
    for _ in range(12):
        spans.append(book.next_span(is_needed=True))
        book.gather(batch(spans[-1]))
    return tuple(spans)


def test_peers_without_an_anchor_do_not_all_read_the_same(clock):
    books = [
        LeaseBook(BlockOrder(lambda: 6, lambda shard: [8, 8], seed), clock, 30.0, waits_first=False)
        for seed in ("a", "b", "c")
    ]
    assert len({twelve(book) for book in books}) == 3


def test_a_report_fits_a_record_and_has_the_newest(book):
    book.renew([Span(0, 1, 0, 0, 100_000)], -1)
    read_all(book)
    for epoch in range(100):
        starts = range(200 * epoch, 200 * epoch + 200, 20)
        book.gather(batch(*(Span(0, 1, 0, start, start + 10) for start in starts)))
        book.round_began()
        book.round_averaged(epoch)
    report = book.report()
    assert max(report) == 99 and len(report) <= MOST_EPOCHS_REPORTED
    assert sum(map(len, report.values())) <= MOST_SPANS_REPORTED


def test_who_waits_hears_of_a_lease_and_of_the_end(book):
    found, waits = [], threading.Event()

    def read():
        waits.set()
        while (span := book.next_span(is_needed=True)) is None and book.wait():
            pass
        found.append(span)
        while book.wait():
            pass

    reader = threading.Thread(target=read)
    reader.start()
    waits.wait()
    book.renew(LEASE, -1)
    book.close()
    reader.join(10)
    assert not reader.is_alive() and found[0] in (LEASE[0], None)
