"""A program is asked, then killed with all that it has started, and nobody else is."""

import signal
import subprocess
import sys

import psutil
import pytest

from hub_tools.processes.child_process import ChildProcess, last_line

FAMILY = """
import signal, subprocess, sys
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("arguments", "seconds", "code"),
    [((), 60.0, -signal.SIGTERM), ((), 0.0, -signal.SIGKILL), (("deaf",), 0.01, -signal.SIGKILL)],
)
def test_a_program_is_asked_if_there_is_time_and_takes_its_family_along(arguments, seconds, code):
    with ChildProcess([sys.executable, "-c", FAMILY, *arguments], stdout=subprocess.PIPE) as program:
        grandchild = psutil.Process(int(program.stdout.readline()))
        assert program.end(seconds) == code
        assert psutil.wait_procs([grandchild], timeout=10)[1] == []
        assert program.end(seconds) == code, "a second time it does nothing"
    assert program.stdout.closed


def test_a_program_that_has_read_nothing_ends_with_its_block():
    with ChildProcess([sys.executable, "-c", "pass"], stdin=subprocess.PIPE) as program:
        program.wait()
        with pytest.raises(BrokenPipeError):
            program.send({"a": 1})
    assert program.returncode == 0 and program.stdin.closed


def test_the_last_line_of_a_log_is_told_shortly(tmp_path):
    log = tmp_path / "a.log"
    assert last_line(log) == "it printed nothing"
    log.write_text("one\ntwo\n\n")
    assert last_line(log) == "two" and last_line(log, since=8) == "it printed nothing"
    log.write_text("a line of a traceback " * 1000)
    assert len(last_line(log)) == 300 and last_line(log).endswith(" ...")
