"""Servers join where they are needed, and move only for a gain; holes are closed, and none is opened."""

import random
from dataclasses import replace

import pytest

from pipelines.features.serving.blocks.placement import LEAST_GAIN, MoveWatch, best_move, choose_span
from pipelines.features.serving.blocks.routing import ServedSpan, holes

NUM_LAYERS = 12


def served(peer, start, end, rate=100.0, **more):
    return ServedSpan(peer=peer, start=start, end=end, revision="r", layers_per_second=rate, **more)


def slowest(spans):
    rates = [
        sum(s.layers_per_second / (s.end - s.start) for s in spans if s.start <= layer < s.end)
        for layer in range(NUM_LAYERS)
    ]
    return min(rates)


def settle(spans):
    """Let all servers look in turn until nobody moves; return the spans, and each move with what it changed."""
    watches, moves = {span.peer: MoveWatch(span.peer) for span in spans}, []
    for _ in range(40):
        decided = [move for watch in watches.values() if (move := watch.should_move(spans, NUM_LAYERS)) is not None]
        assert len(decided) <= 1, "two servers move at a time"
        for move in decided:
            after = [
                replace(span, start=move.start, end=move.end) if span.peer == move.peer else span for span in spans
            ]
            moves.append((move, spans, after))
            spans = after
    return spans, moves


def test_a_new_server_takes_what_nobody_serves_then_what_is_slowest():
    spans = [served("a", 0, 4), served("b", 8, 12)]
    assert choose_span(spans, NUM_LAYERS, 4, 100.0) == range(4, 8)
    spans.append(served("c", 4, 8, rate=30.0))
    assert choose_span(spans, NUM_LAYERS, 4, 100.0) == range(4, 8)
    assert choose_span(spans, NUM_LAYERS, 99, 100.0) == range(12)


def test_nobody_moves_for_less_than_a_tenth_nor_while_another_one_does():
    spans = [served("a", 0, 6), served("b", 6, 12), served("c", 6, 12, rate=4.0)]
    assert best_move(spans, NUM_LAYERS) is None
    spans = [served("a", 0, 6), served("b", 6, 12, rate=300.0), served("c", 6, 12)]
    move = best_move(spans, NUM_LAYERS)
    assert (move.peer, move.start) == ("c", 0) and move.gain == pytest.approx(2.0)
    assert best_move([*spans, served("d", 0, 6, is_online=False)], NUM_LAYERS) is None


def test_a_move_is_confirmed_by_a_second_look():
    spans, watch = [served("a", 0, 6), served("b", 6, 12, rate=300.0), served("c", 6, 12)], MoveWatch("c")
    assert watch.should_move(spans, NUM_LAYERS) is None
    assert watch.should_move([*spans[:2], served("c", 0, 12)], NUM_LAYERS) is None, "in between all was well"
    assert watch.should_move(spans, NUM_LAYERS) is None
    assert watch.should_move(spans, NUM_LAYERS) is not None
    assert MoveWatch("a").should_move(spans, NUM_LAYERS) is None


def test_a_server_whose_layers_nobody_else_has_stays():
    spans = [served("a", 0, 6, rate=10.0), served("b", 6, 12, rate=1000.0)]
    assert best_move(spans, NUM_LAYERS) is None


def test_a_hole_that_no_single_move_closes_is_closed_by_two():
    spans = [served("a", 2, 6), served("b", 4, 8), served("c", 8, 12), served("d", 6, 10)]
    spans, moves = settle([span for span in spans if span.peer != "b"] + [served("b", 6, 10)])
    assert holes(spans, range(NUM_LAYERS)) == [] and len(moves) <= 3


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_twelve_joins_and_leaves_leave_no_hole_and_no_move_is_without_its_gain(seed):
    random_numbers, spans, num_moves = random.Random(seed), [], 0
    for number in range(12):
        for _ in range(random_numbers.choice((0, 0, 1, 2))):
            if sum(span.end - span.start for span in spans) > 2 * NUM_LAYERS:
                spans.remove(random_numbers.choice(spans))
        length, rate = random_numbers.choice((3, 4, 6, 12)), random_numbers.choice((50.0, 100.0, 200.0))
        place = choose_span(spans, NUM_LAYERS, length, rate)
        spans.append(served(f"p{number}", place.start, place.stop, rate=rate))
        before = {layer for hole in holes(spans, range(NUM_LAYERS)) for layer in hole}
        spans, moves = settle(spans)
        num_moves += len(moves)
        for move, old, new in moves:
            missing, left = (
                {layer for hole in holes(state, range(NUM_LAYERS)) for layer in hole} for state in (old, new)
            )
            assert left <= missing, "a hole was opened"
            if missing:
                assert move.gain == float("inf")
            else:
                assert slowest(new) > LEAST_GAIN * slowest(old)
        left = {layer for hole in holes(spans, range(NUM_LAYERS)) for layer in hole}
        assert left <= before
        if sum(span.end - span.start for span in spans) >= 2 * NUM_LAYERS:
            assert not left, [(span.start, span.end) for span in spans]
    assert num_moves < 24
