"""The thread that keeps an auxiliary peer in step: what fails is tried again, and ends neither entry nor publisher."""

import threading

from pipelines.features.publishing.auxiliary.side_threads import MAX_FAILURES, RoundThread


def failing(script, done):
    """Return a function that fails where the script says so, in turn; `done` is set after the last one."""
    left = list(script)

    def keep_up():
        fails = left.pop(0) if left else False
        if not left:
            done.set()
        if fails:
            raise RuntimeError("the swarm's answer cannot be understood")

    return keep_up


def test_failures_in_between_are_tried_again_whatever_their_number(caplog):
    done = threading.Event()
    script = ([True] * (MAX_FAILURES - 1) + [False]) * 3
    with RoundThread(failing(script, done), pauses=(0.0, 0.0)) as thread:
        assert done.wait(60)
        assert thread._thread.is_alive()
    assert caplog.text.count("Keeping up with the swarm failed") == 3 * (MAX_FAILURES - 1)
    assert "takes no part in rounds" not in caplog.text


def test_who_fails_too_often_in_a_row_gives_up_the_rounds_alone_and_says_so_once(caplog):
    done = threading.Event()
    with RoundThread(failing([True] * MAX_FAILURES, done), pauses=(0.0, 0.0)) as thread:
        thread._thread.join(60)
        assert done.is_set() and not thread._thread.is_alive()
        with thread.paused():
            pass  # who publishes is not held up
    assert caplog.text.count("takes no part in rounds any more") == 1
    assert caplog.text.count("Keeping up with the swarm failed (") == MAX_FAILURES
