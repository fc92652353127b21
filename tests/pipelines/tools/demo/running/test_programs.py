"""Programs of a demo with their families: children in sessions of their own, frozen ones, orphans."""

import os
import signal
import subprocess
import sys
import time

import pytest
from running_programs import wait_for

from pipelines.tools.demo.running import programs
from pipelines.tools.demo.running.programs import VARIABLE, end_leftovers, nothing_left, start_program, stop_all
from pipelines.tools.process_table import is_frozen, processes_with_variable

# A worker in a session of its own, as a peer has one, and its parent; both read a pipe that nobody closes.
FAMILY = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE,\n"
    "                         start_new_session=True)\n"
    "print(child.pid, flush=True)\n"
    "child.wait()\n"
)


@pytest.fixture
def family(tmp_path):
    program = start_program(
        [sys.executable, "-c", FAMILY], tmp_path, "family", dict(os.environ), stdout=subprocess.PIPE
    )
    yield program, int(program.process.stdout.readline())
    program.kill()
    program.process.stdout.close()


def members(program):
    return processes_with_variable(VARIABLE, program.mark)


def test_a_program_is_stopped_with_its_children_in_other_sessions(family):
    program, child = family
    assert sorted(members(program)) == sorted([program.process.pid, child])
    assert stop_all([program]) == []
    assert members(program) == [] and program.exit_code == -signal.SIGTERM


def test_a_frozen_family_is_not_waited_for(family):
    program, child = family
    for pid in (program.process.pid, child):
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: program.is_frozen and is_frozen(program.process.pid), "frozen")
    started = time.monotonic()
    assert stop_all([program], 600.0) == [program]
    assert members(program) == [] and time.monotonic() - started < 60


def test_who_is_known_to_leave_has_the_time_and_is_then_ended(family):
    program, _ = family
    assert stop_all([program], 0.3, asks=False) == [program]
    assert program.exit_code == -signal.SIGKILL


def test_orphans_of_an_interrupted_demo_are_ended_and_those_of_others_are_not(family, tmp_path):
    program, child = family
    os.kill(child, signal.SIGSTOP)
    program.process.kill()
    program.process.wait()
    assert members(program) == [child]
    assert end_leftovers(tmp_path / "other", 600.0) == 0 and members(program) == [child]
    assert end_leftovers(tmp_path, 600.0) == 1 and members(program) == []


def test_nothing_is_left_however_a_block_ends(family, tmp_path):
    program, _ = family
    with pytest.raises(KeyboardInterrupt), nothing_left(tmp_path):
        raise KeyboardInterrupt
    assert members(program) == []


def test_a_folder_whose_name_goes_on_is_another(tmp_path):
    assert programs.mark_of_all(tmp_path / "demo").startswith(programs.mark_of_all(tmp_path / "demo-2")) is False
    assert programs.mark_of_all(tmp_path / "demo-2").startswith(programs.mark_of_all(tmp_path / "demo")) is False
