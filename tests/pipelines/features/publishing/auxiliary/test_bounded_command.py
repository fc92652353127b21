"""A command beside a peer ends with it, within its time, with all that it has started; nobody waits for it."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from published_runs import family_of, still_alive
from running_programs import wait_for

from pipelines.features.publishing.auxiliary.evaluating.bounded_command import TOO_SLOW_EXIT_CODE, BoundedCommand

FAMILY = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(600)
"""
PARENT = """
import os, sys, time
from pathlib import Path
from pipelines.features.publishing.auxiliary.evaluating.bounded_command import BoundedCommand
folder = Path(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2], str(folder / "ready")]
with BoundedCommand(command, limit_seconds=600, environment=os.environ, log=folder / "log"):
    time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    """A function that starts a Python program as a bounded command; it is stopped after the test."""
    started = []

    def start_program(program, *arguments, limit=600.0):
        command = BoundedCommand(
            [sys.executable, "-c", program, *map(str, arguments)],
            limit_seconds=limit, environment=os.environ, log=tmp_path / "log",
        )  # fmt: skip
        started.append(command)
        return command

    yield start_program
    for command in started:
        command.stop()


def ended(command):
    wait_for(lambda: command.exit_code() is not None, "ended")
    return command.exit_code()


def family_below():
    """Return the processes that this one has started, from the moment on that a family is complete."""
    return psutil.Process().children(recursive=True)


@pytest.mark.parametrize(
    ("program", "code", "line"),
    [
        ("pass", 0, "it printed nothing"),
        ("print('some'); raise SystemExit('dalle-collab: no records')", 1, "dalle-collab: no records"),
        ("import os; print('x' * 9999, flush=True); os.abort()", 128 + signal.SIGABRT, f"{'x' * 296} ..."),
    ],
)
def test_the_exit_code_and_the_last_line_say_what_happened(start, program, code, line):
    command = start(program)
    assert (ended(command), command.last_line()) == (code, line)


def test_it_has_the_lowest_priority_and_ends_before_the_peer_when_memory_is_short(start):
    program = (
        "import os; print(os.nice(0), open('/proc/self/oom_score_adj').read().strip(), os.getpgid(0) == os.getpid())"
    )
    command = start(program)
    assert (ended(command), command.last_line()) == (0, "19 1000 True")


def test_one_that_hangs_delays_nothing_and_is_ended_with_its_children_when_its_time_is_up(start, tmp_path):
    before = set(family_below())
    command = start(FAMILY, tmp_path / "ready", limit=6.0)
    wait_for((tmp_path / "ready").exists, "ready")
    family = set(family_below()) - before
    assert len(family) == 3, "command, guard and the command's child"
    started = time.process_time()
    assert all(command.exit_code() is None for _ in range(100)) and time.process_time() - started < 1
    assert (ended(command), command.last_line()) == (TOO_SLOW_EXIT_CODE, "Its 6 seconds were up.")
    assert still_alive(list(family)) == []


def test_one_that_is_stopped_takes_its_children_along(start, tmp_path):
    before = set(family_below())
    command = start(FAMILY, tmp_path / "ready")
    wait_for((tmp_path / "ready").exists, "ready")
    family = set(family_below()) - before
    command.stop()
    assert still_alive(list(family)) == []


@pytest.mark.parametrize(
    ("killed", "ended"),
    [
        (["parent"], ["command", "guard", "child"]),
        (["command"], ["guard", "child"]),
        (["guard", "parent"], ["command"]),
    ],
)
def test_a_peer_or_a_command_that_is_killed_leaves_no_orphan(tmp_path, killed, ended):
    command = [sys.executable, "-c", PARENT, str(tmp_path), FAMILY]
    with subprocess.Popen(command, start_new_session=True) as parent:
        wait_for((tmp_path / "ready").exists, "ready")
        family = dict(zip(("parent", "command", "guard", "child"), family_of(parent.pid), strict=True))
        try:
            for name in killed:
                family[name].kill()
            assert still_alive([family[name] for name in ended]) == []
        finally:
            parent.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                family["child"].kill()
