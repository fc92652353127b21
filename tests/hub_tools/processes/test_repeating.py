"""Work that is repeated while something else goes on."""

import threading

from hub_tools.processes.repeating import repeated


def test_work_that_fails_is_done_again_until_the_block_ends():
    done, enough = [], threading.Event()

    def work():
        done.append(1)
        if len(done) == 3:
            enough.set()
        raise OSError("not now")

    with repeated(work, 0.01, "again"):
        assert enough.wait(30)
    assert not any(thread.name == "again" for thread in threading.enumerate())
