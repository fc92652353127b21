"""Which server draws which candidates: all are drawn once, whoever fails, and slow servers hold nobody up."""

import random

import pytest

from pipelines.features.serving.draw.allotment import Allotment


def simulated(allotment, rates, *, dies=frozenset(), seed=0):
    """Let servers draw at their true rates until all is there; return the seconds and who drew what.

    Servers in `dies` draw nothing and are noticed after ten seconds.
    """
    draw, now, busy, drawn = random.Random(seed), 0.0, {}, {}
    alive = dict(rates)
    while allotment.missing:
        for server in sorted(alive, key=lambda _: draw.random()):
            if server not in busy and (part := allotment.take(server, now)) is not None:
                ends = now + (10.0 if server in dies else len(part.candidates) / rates[server])
                busy[server] = (ends, part)
        now = min(now + 0.5, min(ends for ends, _ in busy.values()))
        for server, (ends, part) in list(busy.items()):
            seconds = ends - part.begun
            part.share_done = 0.0 if server in dies else min(1.0, (now - part.begun) / seconds)
            if server not in dies and allotment.is_over(part):
                allotment.give_back(part)
                del busy[server]
            elif now >= ends:
                del busy[server]
                if server in dies:
                    allotment.leave(server)
                    del alive[server]
                    continue
                for number in allotment.finish(part, now):
                    assert number not in drawn
                    drawn[number] = server
        assert now < 1e5
    return now, drawn


@pytest.mark.parametrize("seed", range(5))
def test_servers_of_unequal_rates_finish_together(seed):
    rates = dict(a=1.0, b=2.0, c=5.0)
    seconds, drawn = simulated(Allotment(range(160), dict(rates)), rates, seed=seed)
    assert sorted(drawn) == list(range(160)) and seconds <= 1.3 * 160 / 8


def test_what_a_server_says_of_itself_is_measured():
    declared, rates = dict(boaster=100.0, modest=1.0), dict(boaster=0.2, modest=2.0)
    seconds, drawn = simulated(Allotment(range(128), declared), rates)
    assert sorted(drawn) == list(range(128)) and seconds <= 1.8 * 128 / 2.2


@pytest.mark.parametrize("dies", [{"a"}, {"b", "c"}])
def test_what_a_dead_server_had_is_drawn_by_others(dies):
    rates = dict(a=1.0, b=2.0, c=5.0, d=2.0)
    _, drawn = simulated(Allotment(range(100), dict(rates)), rates, dies=dies)
    assert sorted(drawn) == list(range(100)) and not set(drawn.values()) & dies


def test_a_part_is_taken_over_once_and_only_if_that_is_much_faster():
    allotment = Allotment(range(1), dict(slow=0.01))
    first = allotment.take("slow", 0.0)
    allotment.rates |= dict(equal=0.011, fast=10.0, other=10.0)
    assert allotment.take("equal", 1.0) is None
    second = allotment.take("fast", 1.0)
    assert second.candidates == first.candidates and allotment.take("other", 1.0) is None
    assert allotment.finish(second, 1.5) == [0] and allotment.is_over(first)
    assert allotment.finish(first, 99.0) == []


def test_what_was_found_false_is_drawn_again():
    allotment = Allotment(range(3), dict(a=1.0))
    done = []
    while allotment.waiting:
        done += allotment.finish(allotment.take("a", 0.0), 1.0)
    assert done == [0, 1, 2] and not allotment.missing
    allotment.lose([1])
    assert allotment.take("a", 2.0).candidates == range(1, 2)
