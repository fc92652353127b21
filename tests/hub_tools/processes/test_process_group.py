"""A peer's processes end together: whoever is killed, nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hub_tools.processes import process_group

OUTER = """
import sys
from hub_tools.processes.process_group import run_as_worker
sys.exit(run_as_worker(sys.argv[1:], {"GREETING": "hello"}))
"""

# It stands where the worker looks for the command line, so that no swarm is needed to see processes end.
WORKER = """
import importlib.util, os, signal, subprocess, sys, threading
from pathlib import Path

spec = importlib.util.spec_from_file_location("process_group", os.environ["PROCESS_GROUP"])
process_group = importlib.util.module_from_spec(spec)
spec.loader.exec_module(process_group)
assert process_group.is_worker() and os.environ["GREETING"] == "hello"
process_group.guard_process_group()
stop = threading.Event()
if sys.argv[1] == "polite":
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
elif sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: Path("asked").touch())
else:
    sys.exit(3)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path("ready.partial").write_text(str(os.getpid()))
Path("ready.partial").rename("ready")
while not stop.wait(0.05):
    pass
"""


@pytest.fixture
def start(tmp_path):
    """A function that starts `run_as_worker` around a small program, which starts a child of its own."""
    folder = tmp_path / "pipelines" / "command_line"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "main.py").write_text(WORKER)
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "outer.py").write_text(OUTER)
    started = []

    def start_outer(mode):
        environment = {**os.environ, "PROCESS_GROUP": process_group.__file__}
        command = [sys.executable, str(tmp_path / "outer" / "outer.py"), mode]
        with (tmp_path / "errors").open("w") as errors:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=errors, start_new_session=True)
            )
        return started[-1]

    yield start_outer
    for process in started:
        process.kill()
        process.wait()


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.02)
    return path.read_text()


def when_ready(process, folder):
    """Return the worker and the whole family: outer process, worker, guard, and the worker's child."""
    worker = psutil.Process(int(wait_for(folder / "ready")))
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert worker in family and len(family) == 4
    return worker, family


def alive(family):
    return psutil.wait_procs(family, timeout=10)[1]


def test_nothing_is_left_when_the_outer_process_is_killed(start, tmp_path):
    process = start("polite")
    _, family = when_ready(process, tmp_path)
    process.kill()
    process.wait()
    assert alive(family) == []


def test_nothing_is_left_when_the_worker_is_killed_and_the_exit_code_says_so(start, tmp_path):
    process = start("polite")
    worker, family = when_ready(process, tmp_path)
    worker.kill()
    assert process.wait(30) == 128 + signal.SIGKILL
    assert alive(family) == []
    assert "This peer was ended by SIGKILL (out of memory?" in (tmp_path / "errors").read_text()


def test_each_signal_that_ends_a_worker_has_words():
    assert "is the shared memory full? See: df -h /dev/shm" in process_group.words_for_a_death(signal.SIGBUS)
    assert process_group.words_for_a_death(signal.SIGSEGV).startswith("This peer was ended by SIGSEGV (a crash")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_request_lets_the_worker_end_in_good_order(start, tmp_path, number):
    process = start("polite")
    _, family = when_ready(process, tmp_path)
    process.send_signal(number)
    assert process.wait(30) == 0
    assert alive(family) == []


def test_a_second_ctrl_c_ends_a_worker_that_does_not_listen(start, tmp_path):
    process = start("stubborn")
    _, family = when_ready(process, tmp_path)
    process.send_signal(signal.SIGINT)
    wait_for(tmp_path / "asked")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert alive(family) == []


def test_the_workers_exit_code_is_the_commands(start):
    assert start("short").wait(60) == 3


def test_a_process_that_a_person_started_is_no_worker():
    assert not process_group.is_worker()
