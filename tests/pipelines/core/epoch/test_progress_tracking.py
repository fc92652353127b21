"""When a peer reports its progress, and which of its records counts."""

import asyncio
import threading
from types import SimpleNamespace

from pipelines.core.epoch.progress_tracking import (
    PacedEvent,
    SwarmProgressTracker,
    newest_of_each_peer,
)


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


def test_a_peer_with_many_keys_counts_once_by_its_newest_record():
    times = {b"old": (b"ann", 1.0), b"new": (b"ann", 3.0), b"older": (b"ann", 2.0), b"only": (b"bob", 0.0)}
    records = {owner: SimpleNamespace(peer_id=peer, time=time) for owner, (peer, time) in times.items()}
    assert set(newest_of_each_peer(records)) == {b"new", b"only"}


class FailingTracker(SwarmProgressTracker):
    """Fails twice while it follows the swarm; it waits for nothing, and knows no swarm."""

    def __init__(self):
        threading.Thread.__init__(self)
        self.num_begun, self.shutdown_complete = 0, threading.Event()
        self.shutdown_triggered = SimpleNamespace(is_set=lambda: False, wait=lambda seconds: None)

    async def _progress_reporter(self):
        pass

    async def _progress_fetcher(self):
        self.num_begun += 1
        if self.num_begun < 3:
            raise OSError("the DHT's process does not answer")


def test_a_tracker_that_fails_begins_again_instead_of_leaving_its_peer_blind(caplog):
    tracker = FailingTracker()
    tracker.run()
    asyncio.get_event_loop().close()
    assert (tracker.num_begun, tracker.shutdown_complete.is_set()) == (3, True)
    assert caplog.text.count("The swarm's progress could not be followed, next try in") == 2
