"""Which epoch the swarm is in, when some of its records are late and one may be a lie."""

import threading

import pytest

from pipelines.training.swarm_optimizer.progress_tracking import PacedEvent, witnessed_epoch


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([], 0),
        ([7], 7),
        ([7, 9], 9),
        ([7, 7, 8], 7),
        ([7, 8, 8], 8),
        ([7, 7, 7, 1000], 7),
        ([5] * 10 + [1000] * 2, 5),
        ([5] * 8 + [6] * 4, 6),
    ],
    ids=["alone", "one", "two", "first to finish", "second to finish", "liar", "too few liars", "a third moved on"],
)
def test_the_swarms_epoch_is_one_that_several_have_reached(epochs, expected):
    assert witnessed_epoch(epochs) == expected


def test_reports_of_one_epoch_wait_for_their_time_and_that_of_a_new_epoch_does_not():
    event = PacedEvent(pause=lambda: 3600.0)
    event.set()
    assert event.wait()  # the first one goes at once
    event.clear()
    assert not event.wait(timeout=0.0)
    event.set()
    waiting = threading.Thread(target=event.wait)
    waiting.start()
    waiting.join(timeout=0.2)
    assert waiting.is_alive()
    event.hurry()
    waiting.join(timeout=30.0)
    assert not waiting.is_alive()
