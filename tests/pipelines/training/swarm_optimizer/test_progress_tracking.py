"""When a peer reports its progress, and which of its records counts."""

import threading
from types import SimpleNamespace

from pipelines.training.swarm_optimizer.progress_tracking import PacedEvent, newest_of_each_peer


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
