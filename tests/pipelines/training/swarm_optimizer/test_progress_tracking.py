"""When a peer reports its progress."""

import threading

from pipelines.training.swarm_optimizer.progress_tracking import PacedEvent


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
