"""Whose message a block server answers next. One event holds the thread until all have asked."""

import threading
import weakref
from functools import partial

import pytest

from pipelines.features.serving.fair_thread import FairThread


class Asked:
    """A thread with a clock of its own, which what it computes moves on."""

    def __init__(self):
        self.seconds, self.order, self.may_begin = 0.0, [], threading.Event()
        self.thread = FairThread("test", clock=lambda: self.seconds)
        self.begun = threading.Event()
        self.thread.submit("first", lambda: (self.begun.set(), self.may_begin.wait(60)))
        assert self.begun.wait(60)

    def ask(self, address, seconds, number=1):
        def compute():
            self.seconds += seconds
            self.order.append(address)

        return [self.thread.submit(address, compute) for _ in range(number)]

    def answered(self, *futures):
        self.may_begin.set()
        for future in futures:
            future.result(60)
        return "".join(self.order)


@pytest.fixture
def asked():
    asked = Asked()
    yield asked
    asked.may_begin.set()
    asked.thread.close()


def test_who_asks_for_much_at_once_is_not_ahead_of_who_comes_later(asked):
    futures = [*asked.ask("a", 1.0, 6), *asked.ask("b", 1.0, 2)]
    assert asked.answered(*futures) == "ababaaaa"


def test_turns_are_counted_in_time(asked):
    futures = [*asked.ask("a", 4.0, 3), *asked.ask("b", 1.0, 8)]
    assert asked.answered(*futures) == "abbbbabbbba"


def test_time_that_was_not_used_is_not_saved_up(asked):
    assert asked.answered(*asked.ask("a", 1.0, 5)) == "aaaaa"
    asked.may_begin.clear()
    asked.begun.clear()
    asked.thread.submit("a", lambda: (asked.begun.set(), asked.may_begin.wait(60)))
    assert asked.begun.wait(60)
    asked.order.clear()
    futures = [*asked.ask("a", 1.0, 2), *asked.ask("b", 1.0, 4)]
    assert asked.answered(*futures) == "ababbb"


def test_an_error_reaches_who_has_asked_and_the_thread_goes_on(asked):
    broken = asked.thread.submit("a", lambda: 1 // 0)
    assert asked.answered(*asked.ask("b", 1.0)) == "b"
    with pytest.raises(ZeroDivisionError):
        broken.result(60)


def test_what_waits_is_cancelled_when_it_closes(asked):
    (future,) = asked.ask("a", 1.0)
    asked.thread.close()
    asked.may_begin.set()
    assert future.cancelled()
    with pytest.raises(RuntimeError, match="has ended"):
        asked.thread.submit("a", lambda: None)


def test_of_what_was_cancelled_the_newest_alone_is_kept_until_its_turn(asked):
    """Seen before: fifty messages of a client that had gone each time, with all their tensors."""
    kept = []
    for _ in range(50):
        message = bytearray(1)
        asked.thread.submit("gone", partial(bytes, held := memoryview(message))).cancel()
        kept.append(weakref.ref(held))
        del message, held
    assert [one() is None for one in kept] == 49 * [True] + [False]
    assert asked.answered(*asked.ask("gone", 1.0)) == "gone"
