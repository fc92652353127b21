"""The chain is the shortest one, whole, and of one revision."""

import itertools
import random

import pytest

from pipelines.features.serving.blocks.routing import NoChainError, ServedSpan, choose_chain, fill_command, holes

NEW, OLD = "b" * 40, "a" * 40


def served(peer, start, end, rate=100.0, trip=0.01, **more):
    options = dict(revision=NEW) | more
    return ServedSpan(peer=peer, start=start, end=end, layers_per_second=rate, round_trip_seconds=trip, **options)


def chain_of(spans, layers=range(12), **options):
    return choose_chain(spans, layers, NEW, repository="org/run", **options)


def seconds(spans, chain):
    by_peer = {span.peer: span for span in spans}
    return sum(
        by_peer[hop.peer].round_trip_seconds + (hop.end - hop.start) / by_peer[hop.peer].layers_per_second
        for hop in chain
    )


def test_a_chain_uses_a_part_of_a_span_where_that_is_faster():
    spans = [served("slow", 0, 12, rate=10), served("left", 0, 7), served("right", 5, 12)]
    assert [(hop.peer, hop.start, hop.end) for hop in chain_of(spans)] == [("left", 0, 5), ("right", 5, 12)]


def test_one_near_server_beats_two_fast_ones_that_are_far():
    spans = [served("near", 0, 12, rate=50), served("far1", 0, 6, trip=0.5), served("far2", 6, 12, trip=0.5)]
    assert [hop.peer for hop in chain_of(spans)] == ["near"]


@pytest.mark.parametrize("seed", range(40))
def test_the_chain_is_the_shortest_of_all_there_are(seed):
    """Compared with all chains, found by trying."""
    random_numbers, num_layers = random.Random(seed), 6
    spans = []
    for number in range(5):
        start = random_numbers.randrange(num_layers)
        end = random_numbers.randint(start + 1, num_layers)
        rate, trip = random_numbers.uniform(5, 50), random_numbers.uniform(0, 0.2)
        spans.append(served(f"p{number}", start, end, rate=rate, trip=trip))
    best = float("inf")
    for size in range(1, num_layers + 1):
        for cuts in itertools.combinations(range(1, num_layers), size - 1):
            edges = (0, *cuts, num_layers)
            total = 0.0
            for start, end in itertools.pairwise(edges):
                prices = [s.round_trip_seconds + (end - start) / s.layers_per_second for s in spans
                          if s.start <= start and end <= s.end]  # fmt: skip
                total += min(prices, default=float("inf"))
            best = min(best, total)
    if best == float("inf"):
        with pytest.raises(NoChainError):
            chain_of(spans, range(num_layers))
        return
    chain = chain_of(spans, range(num_layers))
    assert [hop.start for hop in chain] == [0, *(hop.end for hop in chain[:-1])] and chain[-1].end == num_layers
    assert seconds(spans, chain) == pytest.approx(best)
    random_numbers.shuffle(spans)
    assert chain_of(spans, range(num_layers)) == chain


def test_revisions_are_never_mixed_and_the_missing_layers_are_named_with_their_command():
    spans = [served("a", 0, 6), served("b", 6, 12, revision=OLD), served("c", 6, 9, is_online=False)]
    message = r"Nobody serves layers 6:12 of org/run.*Of other revisions.*: 1 server\..*serve org/run --blocks 6:12"
    with pytest.raises(NoChainError, match=message) as caught:
        chain_of(spans)
    assert caught.value.missing == (range(6, 12),)
    assert fill_command("org/run", range(6, 12)) == "dalle-collab serve org/run --blocks 6:12"


def test_servers_to_avoid_are_used_only_where_nobody_else_is():
    spans = [served("a", 0, 6), served("b", 6, 12, rate=1), served("c", 6, 12)]
    assert [hop.peer for hop in chain_of(spans, avoid={"c"})] == ["a", "b"]
    assert chain_of(spans, avoid={"a", "c"})[0].peer == "a"


def test_two_thousand_servers_are_no_matter():
    random_numbers, spans = random.Random(0), []
    for number in range(2000):
        start = random_numbers.randrange(64)
        spans.append(
            served(f"p{number}", start, random_numbers.randint(start + 1, 64), rate=random_numbers.uniform(1, 9))
        )
    chain = chain_of(spans, range(64))
    assert chain[0].start == 0 and chain[-1].end == 64


def test_holes_are_runs_of_layers():
    assert holes([served("a", 2, 4), served("b", 3, 6)], range(9)) == [range(0, 2), range(6, 9)]


@pytest.mark.parametrize(
    "wrong", [dict(start=3, end=3), dict(start=-1, end=2), dict(rate=0.0), dict(rate=float("nan"))]
)
def test_spans_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        served(**dict(peer="a", start=0, end=1) | wrong)
