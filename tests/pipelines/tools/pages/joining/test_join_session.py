"""A session's trainer is one process group: started once, heard, paused, stopped, and never left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hub_tools.processes import process_group
from pipelines.tools.pages.joining.join_session import JoinSession
from pipelines.tools.pages.joining.join_settings import JoinSettings

TOKEN = "token-of-alice"

# It stands where the worker looks for the command line, so that no swarm is needed to see processes end.
TRAINER = """
import importlib.util, json, os, signal, subprocess, sys, threading
from pathlib import Path

spec = importlib.util.spec_from_file_location("process_group", os.environ["PROCESS_GROUP"])
process_group = importlib.util.module_from_spec(spec)
spec.loader.exec_module(process_group)
process_group.guard_process_group()
command, kind = sys.argv[1], sys.argv[2].partition("/")[2]
events = sys.argv[sys.argv.index("--events") + 1]
stop = threading.Event()

def tell(event, **values):
    with open(events, "a") as file:
        file.write(json.dumps(dict(event=event, **values)) + "\\n")

def step(num_samples):
    known = dict(epoch=1, loss=2.0, epoch_loss=2.0, share_averaged=1.0, num_peers=2, samples_per_second=5.0)
    known["ended_epoch"] = True
    tell("step", num_samples=num_samples, **known)

if kind == "broken":
    print("working", flush=True)
    print("dalle-collab: The token " + os.environ["HF_TOKEN"] + " is refused. Log in.", flush=True)
    sys.exit(1)
if command == "doctor":
    tell("looking", at="Hub")
    tell("finding", name="Hub", status="ok", seen="answers", expected="", cure="")
    if kind == "slow":
        stop.wait(600)
    sys.exit(0)
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
signal.signal(signal.SIGUSR1, lambda *_: tell("paused"))
signal.signal(signal.SIGUSR2, lambda *_: tell("resumed"))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell("entered")
tell("joined", username="anonymous", epoch=0, num_epochs=9, unit="samples", state="start")
step(32)
if kind == "again" and not Path("second").exists():
    Path("second").touch()
    sys.exit(process_group.START_AGAIN_EXIT_CODE)
while not stop.wait(0.05):
    pass
tell("left", num_samples=40)
"""


@pytest.fixture
def children():
    """A function that returns what this process has started since the test began, with all that came of it."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]


@pytest.fixture
def session(children, tmp_path, monkeypatch):
    folder = tmp_path / "pipelines" / "command_line"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "volunteer.py").write_text(TRAINER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROCESS_GROUP", process_group.__file__)
    with JoinSession() as session:
        yield session
    assert children() == []


def settings(kind="polite"):
    return JoinSettings(repository=f"org/{kind}")


def wait_until(session, is_so, seconds=60):
    deadline, version = time.monotonic() + seconds, -1
    while not is_so(session.view()):
        assert time.monotonic() < deadline, session.view()
        version = session.wait_for_change(version, 1.0)
    return session.view()


def test_a_trainer_is_started_once_however_often_the_button_is_pressed(session, children):
    for _ in range(3):
        session.start(settings(), TOKEN)
    wait_until(session, lambda view: view.phase == "training")
    session.start(settings("other"), TOKEN)
    workers = [child for child in psutil.Process().children() if "pipelines.command_line.volunteer" in child.cmdline()]
    assert len(workers) == 1 and session.view().repository == "org/polite"
    with pytest.raises(ValueError, match="stop it before checking the machine"):
        session.check(settings(), TOKEN)
    family = children()
    assert len(family) == 3  # worker, guard, and what the trainer has started
    assert not any(TOKEN in word for process in family for word in process.cmdline())
    assert workers[0].environ()["HF_TOKEN"] == TOKEN
    session.stop()
    session.stop()
    view = wait_until(session, lambda view: not view.is_alive)
    assert (view.phase, view.all_samples) == ("stopped", 40)
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_a_pause_and_its_end_are_seen_when_the_trainer_has_made_them(session):
    with pytest.raises(ValueError, match="no running trainer to pause"):
        session.pause()
    session.start(settings(), None)
    wait_until(session, lambda view: view.phase == "training")
    session.pause()
    wait_until(session, lambda view: view.phase == "paused")
    session.pause()
    session.resume()
    wait_until(session, lambda view: view.phase == "training")
    with pytest.raises(ValueError, match="is not the name of a run"):
        session.start(settings("b/c"), None)


def test_a_trainer_that_does_not_listen_is_killed_with_all_that_it_has_started(session, children):
    session.start(settings("stubborn"), TOKEN)
    wait_until(session, lambda view: view.phase == "training")
    family = children()
    session.stop(seconds=0.2)
    assert wait_until(session, lambda view: not view.is_alive).phase == "stopped"
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_a_trainer_that_dies_is_shown_with_its_last_words_and_without_the_token(session):
    session.start(settings("broken"), TOKEN)
    view = wait_until(session, lambda view: view.phase == "failed")
    assert view.message == "The token (token) is refused. Log in."
    assert view.lines[0] == "working" and TOKEN not in repr(view) + repr(session)
    session.start(settings(), TOKEN)
    wait_until(session, lambda view: view.phase == "training")


def test_a_trainer_whose_run_was_rolled_back_is_started_again_and_its_samples_stay_counted(session):
    session.start(settings("again"), TOKEN)
    view = wait_until(session, lambda view: view.phase == "training" and view.earlier_samples == 32)
    assert view.all_samples == 64


def test_findings_arrive_one_by_one_and_a_start_gives_the_examination_up(session):
    session.check(settings(), TOKEN)
    view = wait_until(session, lambda view: not view.is_checking)
    assert [result.name for result in view.checks] == ["Hub"] and view.check_problem == ""
    session.check(settings("slow"), TOKEN)
    session.check(settings("slow"), TOKEN)
    wait_until(session, lambda view: view.checks)
    session.start(settings("slow"), TOKEN)
    view = wait_until(session, lambda view: view.phase == "training")
    assert not view.is_checking
    session.stop()
    wait_until(session, lambda view: not view.is_alive)
    session.check(settings("broken"), TOKEN)
    assert "is refused" in wait_until(session, lambda view: view.check_problem).check_problem


PAGE = """
import sys
from pipelines.tools.pages.joining.join_session import JoinSession
from pipelines.tools.pages.joining.join_settings import JoinSettings

session = JoinSession()
session.start(JoinSettings(repository="org/stubborn"), None)
version = 0
while session.view().phase != "training":
    version = session.wait_for_change(version, 60)
print("training", flush=True)
sys.stdin.read()
"""


def test_a_page_that_is_killed_leaves_no_trainer_behind(session, children, tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "page.py").write_text(PAGE)
    root = str(Path(process_group.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "pages" / "page.py")],
        env={**os.environ, "PYTHONPATH": root}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "training\n"
        family = children()
        assert len(family) == 4
        process.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(family, timeout=10)[1] == []
