"""Processes that end together: who says what has died, and what is left."""

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from hub_tools.processes.child_watch import ChildDiedError, ChildWatch, wait_until_started, what_died

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

# A program with two children, of which one is killed while the program waits for ever, as hivemind's calls do.
HANGING = """
import logging, subprocess, sys, threading
from hub_tools.processes.child_watch import ChildWatch
logging.basicConfig(format="%(message)s")
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
with ChildWatch() as watch:
    for number, child in enumerate(children):
        watch.add(child.pid, f"Child {number}")
    print(*(child.pid for child in children), flush=True)
    threading.Event().wait()
"""

ORPHANED = """
import os, time
from hub_tools.processes.child_watch import end_with_parent
if os.fork() == 0:
    end_with_parent(lambda: print("last words", flush=True))
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper():
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_program_that_hangs_says_which_child_was_killed_and_ends_with_the_other(victim):
    command = [sys.executable, "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        children = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
        children[victim].kill()
        assert program.wait(30) == 1
        said = program.stderr.read()
    assert said == what_died(f"Child {victim}", -signal.SIGKILL) + "\n"
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_a_child_that_ends_as_asked_is_no_news(sleeper):
    said = []
    with ChildWatch(said.append) as watch:
        watch.add(sleeper.pid, "The child")
        watch.forget(sleeper.pid, None)
        sleeper.kill()
        sleeper.wait()
    assert said == []


def test_what_is_still_watched_at_the_end_is_killed(sleeper):
    with ChildWatch() as watch:
        watch.add(sleeper.pid, "The child")
    assert sleeper.wait(30) == -signal.SIGKILL


def test_each_way_to_die_is_said_and_once(sleeper):
    said, heard = [], threading.Event()

    def hear(line):
        said.append(line)
        heard.set()

    with ChildWatch(hear) as watch:
        watch.add(sleeper.pid, "The child")
        sleeper.terminate()
        assert heard.wait(30)
        with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as other:
            heard.clear()
            watch.add(other.pid, "The other")
            assert heard.wait(30)
    assert [line.partition(". ")[0] for line in said] == [
        "The child was ended by SIGTERM",
        "The other has ended with exit code 3",
    ]


def test_a_child_that_is_gone_already_is_an_error(sleeper):
    sleeper.kill()
    sleeper.wait()
    with ChildWatch() as watch, pytest.raises(ChildDiedError, match=r"The child has ended\. This program cannot go on"):
        watch.add(sleeper.pid, "The child")


class Starting:
    """A process that is ready after some looks, or dies before; what it waits for is counted, not waited."""

    def __init__(self, *, ready_after=None, dies_after=None, error=None, exitcode=-9):
        self.looks, self.ready_after, self.dies_after, self.error = 0, ready_after, dies_after, error
        self.exitcode = exitcode

    def wait_until_ready(self, timeout):
        self.looks += 1
        if self.error is not None:
            raise self.error
        if self.ready_after is None or self.looks <= self.ready_after:
            raise TimeoutError

    def is_alive(self):
        return self.dies_after is None or self.looks <= self.dies_after


def test_a_slow_process_is_waited_for_until_it_is_ready():
    process = Starting(ready_after=5)
    wait_until_started(process, "It")
    assert process.looks == 6


def test_a_process_that_is_killed_while_it_starts_is_an_error_instead_of_waiting_for_ever():
    with pytest.raises(ChildDiedError, match=r"It was killed \(out of memory\?\)\. This program"):
        wait_until_started(Starting(dies_after=2), "It")


def test_what_a_starting_process_says_of_itself_is_passed_on():
    for error in (OSError("no port"), TimeoutError("no answer in 3 s")):
        with pytest.raises(type(error), match=str(error)):
            wait_until_started(Starting(error=error), "It")


def test_a_fork_ends_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", ORPHANED], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
        assert psutil.wait_procs([child], timeout=30)[1] == []
        assert parent.stdout.read() == "last words\n"
