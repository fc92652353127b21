"""A stall is said once, and once when the run goes on."""

import random

import pytest

from pipelines.features.publishing.metrics.stalls import StallWatch, is_stalled, stall_sentence, usual_seconds


def looks(watch, steps, num_trainers=3):
    """The news of a run whose epochs are given with the seconds at which they are looked at."""
    seen = [(now, watch.look(epoch, num_trainers=num_trainers, now=now)) for now, epoch in steps]
    return [(now, news.has_ended, news.epoch) for now, news in seen if news is not None]


def test_a_stall_and_its_end_are_said_once_each():
    steps = [(0, 10), (60, 11), (120, 12), *((120 + 60 * n, 12) for n in range(1, 20)), (1500, 13), (1560, 14)]
    watch = StallWatch([60.0] * 10)
    assert looks(watch, steps) == [(480, False, 12), (1500, True, 13)]
    assert looks(watch, [(1560 + 100 * n, 14) for n in range(20)]) == [(1960, False, 14)], "a second one is said, too"


def test_the_usual_time_is_that_of_the_newest_epochs_and_grows_with_them_but_not_with_stalls():
    watch = StallWatch([])
    assert looks(watch, [(0, 0), (10**6, 0), (10**6 + 5, 1)]) == [], "nothing is known yet: no epoch had been seen"
    now = 10**6 + 5
    for epoch in range(2, 60):
        now += 400
        assert looks(watch, [(now, epoch)]) == []
    assert looks(watch, [(now + 1999, 59), (now + 2001, 59), (now + 50_000, 60)]) == [
        (now + 2001, False, 59),
        (now + 50_000, True, 60),
    ]
    assert looks(watch, [(now + 50_001 + 2000, 60)]) == [(now + 52_001, False, 60)], "the stall is not usual"


def test_short_epochs_stall_after_two_minutes_only():
    assert looks(StallWatch([1.0] * 9), [(0, 1), (119, 1), (121, 1)]) == [(121, False, 1)]
    assert not is_stalled(120, 0.0) and is_stalled(121, 0.0) and not is_stalled(500, 100) and is_stalled(501, 100)


def test_several_epochs_at_once_and_a_step_back_are_no_stall():
    watch = StallWatch([60.0])
    assert looks(watch, [(0, 5), (60, 6), (360, 11), (370, 3), (400, 4)]) == []
    assert looks(watch, [(400 + 301, 4)]) == [(701, False, 4)]


def test_histories_of_any_kind_are_read():
    assert usual_seconds([]) == usual_seconds([0.0, 0.0]) == 0.0
    assert usual_seconds([1000.0] * 100 + [2.0] * 50) == 2.0 and usual_seconds([0.0, 3.0]) == 3.0


@pytest.mark.parametrize("seed", range(5))
def test_the_news_alternate_whatever_happens(seed):
    chance = random.Random(seed)
    watch, now, epoch, kinds = StallWatch([30.0] * 5), 0.0, 0, []
    for _ in range(3000):
        now, epoch = now + chance.expovariate(1 / 60), epoch + chance.choice([0, 0, 0, 0, 0, 0, 0, 1])
        if (news := watch.look(epoch, num_trainers=1, now=now)) is not None:
            kinds.append(news.has_ended)
            assert news.seconds > 120
    assert kinds == [False, True] * (len(kinds) // 2) + [False] * (len(kinds) % 2) and len(kinds) > 4


def test_the_sentences_say_what_is_known():
    watch = StallWatch([60.0])
    watch.look(7, num_trainers=2, now=0)
    stalled = watch.look(7, num_trainers=0, now=1234)
    assert stall_sentence(stalled) == (
        "The run has stalled: no epoch has ended for 1,234 s, usually one takes 60 s; 0 trainers."
    )
    assert stall_sentence(watch.look(8, num_trainers=2, now=2000)) == (
        "The run goes on: epoch 8 has ended, after 2,000 s without one."
    )
