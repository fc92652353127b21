"""The ledger as a pure machine: a virtual swarm, and what careless and hostile peers tell it."""

import json
from collections import Counter

import pytest
from virtual_swarm import ROWS, VirtualSwarm, first_of, options, order

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Span
from pipelines.features.ledger.ledger import MOST_PASSES, NEWCOMERS_LEASES, NEWCOMERS_PER_USER, Ledger


@pytest.mark.parametrize(("num_peers", "num_shards", "batch"), [(5, 10, 512), (300, 40, 4096)])
def test_three_passes_with_joins_and_deaths_book_every_record_once(num_peers, num_shards, batch):
    size = num_shards * 8 * ROWS
    swarm, epoch = VirtualSwarm(num_peers, num_shards, batch, deaths=0.02, seed=1), 0
    while len(swarm.ledger.finished_passes) < 3:
        swarm.run_epoch(epoch)
        epoch += 1
        assert epoch < 10 * 3 * size / batch, "the passes come to an end"
    for number in range(3):
        booked = Counter({key: times for key, times in swarm.booked.items() if key[0] == number})
        assert len(booked) == size == swarm.ledger.finished_passes[number] and set(booked.values()) == {1}
    # What was trained on twice had been in flight when a peer died.
    repeated = sum(times - 1 for times in swarm.trained.values())
    assert 0 < repeated <= swarm.in_flight and swarm.ledger.num_repeated == swarm.ledger.num_strange == 0
    assert swarm.num_met > num_peers + 5


def met(*names, ledger=None, now=0.0):
    ledger = ledger or Ledger(order(), options())
    ledger.meet({name: f"user of {name}" for name in names}, now)
    ledger.grant(now)
    return ledger


def test_leases_are_disjoint_and_follow_what_a_peer_was_seen_to_train_on():
    ledger = met("slow", "fast")
    for epoch in range(1, 6):
        for name, num_records in (("slow", 16), ("fast", 128)):
            ledger.book(name, epoch, first_of(ledger.lease_of(name), num_records), 10.0 * epoch)
        ledger.grant(10.0 * epoch)
    leased = {name: sum(span.num_records for span in ledger.lease_of(name)) for name in ("slow", "fast")}
    # Twice what it trains on in 60 s: 1.6 and 12.8 records a second.
    assert leased["slow"] == pytest.approx(192, rel=0.35) and leased["fast"] == pytest.approx(1536, rel=0.35)
    places = Counter()
    for name in leased:
        VirtualSwarm.count(places, ledger.lease_of(name))
    assert set(places.values()) == {1}


def test_a_block_is_read_by_about_one_peer_however_small_leases_are():
    rows, num_peers, num_records = 1024, 64, 64
    blocks = BlockOrder(lambda: 40, lambda shard: [rows] * 8, 0)
    ledger = Ledger(blocks, options(least_lease=64, epoch_records=num_peers * num_records))
    names = {f"peer {number}": f"user {number}" for number in range(num_peers)}
    readers, done = set(), 0
    for epoch in range(1, 65):
        ledger.meet(names, 20.0 * epoch)
        ledger.grant(20.0 * epoch)
        for name in names:
            used = first_of(ledger.lease_of(name), num_records)
            readers |= {(name, span.block) for span in used}
            done += sum(span.num_records for span in ledger.book(name, epoch, used, 20.0 * epoch + 20))
    assert done > 0.95 * 64 * num_peers * num_records, "nobody waits, but newcomers"
    # Each peer has trained on four blocks' worth: its own ones, the one it is in, and little else.
    assert len(readers) < 1.5 * done / rows + num_peers


def test_what_a_dead_peer_did_not_finish_is_leased_first_to_others():
    ledger = met("one", "other")
    lease = ledger.lease_of("one")
    ledger.book("one", 1, first_of(lease, 100), 10.0)
    left = set(ledger.lease_of("one"))
    ledger.meet({"new": "new"}, 20.0)
    ledger.grant(20.0)
    assert sum(span.num_records for span in left) == 28 and left <= set(ledger.lease_of("new"))


def test_who_leases_all_and_trains_on_nothing_loses_the_lease_and_waits_longer_each_time():
    ledger, held_until = met("idle"), []
    for now in range(0, 5000, 10):
        ledger.meet({"idle": "idle"}, now)
        ledger.expire(now)
        ledger.grant(now)
        held_until.append(bool(ledger.lease_of("idle")))
    assert held_until[0] and 0.1 < sum(held_until) / len(held_until) < 0.4
    assert not any(held_until[-150:]), "the pauses double"


def test_many_new_keys_hold_little_of_the_data():
    names = [f"key {number}" for number in range(500)]
    ledger = Ledger(order(num_shards=100), options())
    ledger.meet({name: "one user" if number < 100 else name for number, name in enumerate(names)}, 0.0)
    ledger.grant(0.0)
    leased = {name: ledger.lease_of(name) for name in names if ledger.lease_of(name)}
    assert sum(name in names[:100] for name in leased) <= NEWCOMERS_PER_USER
    assert len(leased) <= NEWCOMERS_LEASES


def test_what_is_on_anothers_lease_cannot_be_finished_for_it():
    ledger = met("one", "other")
    theirs = ledger.lease_of("other")
    assert ledger.book("one", 1, theirs, 10.0) == []
    assert ledger.num_strange == sum(span.num_records for span in theirs)
    assert ledger.book("other", 1, theirs, 10.0) == theirs
    assert ledger.book("other", 2, theirs, 20.0) == [] and ledger.num_repeated == 128


@pytest.mark.parametrize(
    "span",
    [
        Span(0, 10, 0, 0, 5),
        Span(0, 2**31, 0, 0, 5),
        Span(0, -1, 0, 0, 5),
        Span(0, 0, 8, 0, 5),
        Span(0, 0, -1, 0, 5),
        Span(0, 0, 0, 0, ROWS + 1),
        Span(0, 0, 0, 5, 5),
        Span(0, 0, 0, -5, 5),
        Span(63, 0, 0, 0, 5),
    ],
)
def test_records_that_there_are_not_are_not_booked(span):
    ledger = met("one")
    state = ledger.to_json()
    assert ledger.book("one", 1, [span], 10.0) == []
    assert ledger.num_strange == span.num_records
    assert ledger.to_json()["passes"] == state["passes"]


def test_a_report_is_booked_once_and_only_of_peers_that_are_known():
    ledger = met("one")
    lease = ledger.lease_of("one")
    assert ledger.book("stranger", 1, lease, 10.0) == []
    assert ledger.book("one", 1, first_of(lease, 10), 10.0) == first_of(lease, 10)
    assert ledger.book("one", 1, lease, 10.0) == [] and ledger.book("one", 0, lease, 10.0) == []
    assert ledger.booked_epoch("one") == 1 and ledger.booked_epoch("stranger") == -1


def test_one_report_cannot_finish_the_whole_dataset():
    ledger = Ledger(order(), options(most_in_report=200))
    met("one", ledger=ledger)
    everything = [Span(0, shard, group, 0, ROWS) for shard in range(10) for group in range(8)]
    assert sum(span.num_records for span in ledger.book("one", 1, everything, 10.0)) <= 200


def test_peers_without_a_lease_are_booked_where_nobody_else_is_and_their_blocks_are_passed_over():
    ledger = met("one", "alone")
    free = [span for span in (Span(0, shard, 3, 0, ROWS) for shard in range(10)) if span.block not in {
        held.block for name in ("one", "alone") for held in ledger.lease_of(name)
    }]  # fmt: skip
    assert ledger.book("alone", 1, free, 10.0) == free
    assert ledger.book("one", 1, free, 10.0) == [], "not a second time before their turn, either"
    state = json.loads(json.dumps(ledger.to_json()))
    ledger = Ledger.from_json(order(), options(), state, 10.0)
    seen, epoch = Counter(), 2
    VirtualSwarm.count(seen, free)
    while not ledger.finished_passes:
        ledger.grant(10.0 * epoch)
        spans = [span for span in ledger.lease_of("one") if span.pass_number == 0]
        other = [span for span in ledger.lease_of("alone") if span.pass_number == 0]
        VirtualSwarm.count(seen, ledger.book("one", epoch, spans, 10.0 * epoch))
        VirtualSwarm.count(seen, ledger.book("alone", epoch, other, 10.0 * epoch))
        epoch += 1
    assert set(seen.values()) == {1} and len(seen) == 80 * ROWS == ledger.finished_passes[0]


def test_after_a_restart_nothing_is_leased_again_that_is_leased_or_done():
    ledger = met("one", "other")
    booked = ledger.book("one", 1, first_of(ledger.lease_of("one"), 50), 10.0)
    state = json.loads(json.dumps(ledger.to_json()))
    again = Ledger.from_json(order(), options(), state, 100.0)
    assert again.to_json() == ledger.to_json()
    again.meet({"one": "one", "other": "other", "new": "new"}, 110.0)
    again.grant(110.0)
    places = Counter()
    VirtualSwarm.count(places, booked)
    for name in ("one", "other", "new"):
        VirtualSwarm.count(places, again.lease_of(name))
    assert set(places.values()) == {1} and again.lease_of("new")


def test_a_dataset_smaller_than_the_leases_opens_passes_up_to_a_limit():
    ledger = Ledger(BlockOrder(lambda: 1, lambda shard: [2], 0), options(least_lease=10_000))
    met("one", ledger=ledger)
    assert (
        len(ledger.figures()) == MOST_PASSES
        and sum(figure.num_leased for figure in ledger.figures()) == 2 * MOST_PASSES
    )
    empty = Ledger(BlockOrder(lambda: 2, lambda shard: [0], 0), options())
    met("one", ledger=empty)
    assert empty.lease_of("one") == []


@pytest.mark.parametrize(
    "change",
    [
        dict(passes=[{}]),
        dict(passes=[5]),
        dict(accounts=[["one"]]),
        dict(finished_passes=[[1, "many", 3]]),
        dict(passes=[dict(pass_number=0, window=0, num_taken=0, num_done=0, early=[], open=[[0, 0, 0, 64, "x"]])]),
    ],
)
def test_a_damaged_state_is_refused_in_one_way(change):
    with pytest.raises(ValueError):
        Ledger.from_json(order(), options(), met("one").to_json() | change, 0.0)
