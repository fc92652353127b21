"""Processes found by what they have inherited."""

import os
import signal
import subprocess
import sys
import time

from pipelines.tools.chaos.chaos_processes import left_behind
from pipelines.tools.process_table import (
    group_members,
    processes_with_variable,
    processor_ticks,
    signal_processes,
)


def test_a_grandchild_in_a_session_of_its_own_is_found_by_its_mark_and_ended():
    # The orphan waits for a pipe that this test holds, and keeps none of the pipes that the test reads.
    pipe, end = os.pipe()
    code = (
        "import os, subprocess, sys\n"
        f"streams = dict(stdin={pipe}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "lines = 'print(flush=True); input()'\n"
        "child = subprocess.Popen([sys.executable, '-c', lines], start_new_session=True, **streams)\n"
        "child.stdout.readline()  # within its exec, a process has no environment for a moment\n"
        "print(child.pid, flush=True)\n"
        "os._exit(0)"
    )
    environment = {**os.environ, "DALLE_COLLAB_CHAOS": "abc"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, pass_fds=[pipe]
    )
    orphan = int(done.stdout)
    assert processes_with_variable("DALLE_COLLAB_CHAOS", "abc") == [orphan]
    assert processes_with_variable("DALLE_COLLAB_CHAOS", "ab") == []
    assert group_members(orphan) == [orphan]
    assert left_behind("abc") == [orphan]
    signal_processes([orphan], signal.SIGKILL)
    assert left_behind("abc") == []
    os.close(end)


def test_work_makes_the_processors_busy():
    busy, available = processor_ticks()
    done_at = time.process_time() + 0.5
    while time.process_time() < done_at:
        pass
    busy_after, available_after = processor_ticks()
    ticks_of_the_work = 0.4 * os.sysconf("SC_CLK_TCK")
    assert ticks_of_the_work < busy_after - busy <= available_after - available
