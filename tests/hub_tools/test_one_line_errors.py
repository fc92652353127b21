"""What a person reads when something goes wrong on the command line."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from hub_tools.endpoint import current_endpoint, is_public_hub
from hub_tools.one_line_errors import explain_error
from hub_tools.places import config_folder

APP = """
import sys, typer
from hub_tools.one_line_errors import run_command_line

app = typer.Typer(pretty_exceptions_enable=False)

@app.command()
def fail(kind: str) -> None:
    if kind == "value":
        raise ValueError("seen 3,\\nexpected 4")
    if kind == "file":
        open("/nowhere/at/all")
    if kind == "defect":
        {}["key"]
    if kind == "cause":
        raise RuntimeError("while uploading") from ValueError("the reason")
    if kind in ("disk", "tensors"):
        import os, resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    if kind == "disk":
        open(os.environ["OUTPUT"], "wb").write(bytes(30_000))
    if kind == "tensors":
        import numpy as np
        from safetensors.numpy import save_file
        save_file({"a": np.zeros(10_000)}, os.environ["OUTPUT"])
    if kind == "database":
        import sqlite3
        raise sqlite3.OperationalError("database or disk is full")
    if kind == "letters":
        print("caf\\u00e9 \\u2026 \\u732b")
        raise ValueError("seen \\u732b")
    if kind == "warn":
        import warnings
        warnings.warn("soon gone", FutureWarning)
    if kind == "wait":
        print("waiting", flush=True)
        import signal
        signal.pause()

@app.command()
def other() -> None:
    pass

run_command_line(app, "program")
"""


CLOSED = """
import os, subprocess, sys
from hub_tools.endpoint import prepare_hub_client

prepare_hub_client()
with open("file", "w") as file:
    file.write("kept")
    print("out"), print("err", file=sys.stderr)
    child = "import os; os.read(0, 1); os.write(1, b'out'); os.write(2, b'err')"
    subprocess.run([sys.executable, "-c", child], check=True)
"""


def run(kind, command="fail", **environment):
    return subprocess.run(
        [sys.executable, "-c", APP, command, *([kind] if kind else [])],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "", **environment},
    )


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("value", "program: seen 3, expected 4"),
        ("file", "program: /nowhere/at/all: No such file or directory"),
        ("cause", "program: the reason"),
    ],
)
def test_mistakes_of_people_give_one_line_and_exit_code_1(kind, line):
    done = run(kind)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (1, line, "")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("disk", "program: File too large."),
        ("tensors", "program: Error while serializing: I/O error: File too large (os error 27)."),
        ("database", "program: database or disk is full."),
    ],
)
def test_a_full_disk_is_named_whoever_writes(kind, line, tmp_path):
    done = run(kind, OUTPUT=str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == f"{line} Free some space, or choose a folder on another disk"


@pytest.mark.parametrize(
    ("encoding", "printed", "line"),
    [("latin-1", "café ? ?", "program: seen ?"), ("utf-8", "café … 猫", "program: seen 猫")],
)
def test_letters_that_a_terminal_lacks_end_no_command(encoding, printed, line):
    done = subprocess.run(
        [sys.executable, "-c", APP, "fail", "letters"],
        capture_output=True, env={"PATH": "", "PYTHONIOENCODING": encoding}, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode(encoding).strip()) == (1, printed)
    assert done.stderr.decode(encoding).strip() == line


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_no_command_and_nothing_is_written_into_files(tmp_path, closed):
    """As cron and daemons start programs: the number of a closed stream would go to the next file that is opened."""
    program = tmp_path / "program.py"
    program.write_text(CLOSED)
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" program.py {closed}', sys.executable], cwd=tmp_path, timeout=60, check=False,
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("script", ["dalle-collab", "hub-tools"])
def test_the_installed_scripts_run_without_a_standard_error(script):
    path = Path(sys.executable).with_name(script)
    done = subprocess.run(
        ["sh", "-c", '"$0" --help 2>&-', path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and "Usage" in done.stdout


def test_what_libraries_warn_programmers_of_is_shown_on_demand():
    assert "soon gone" not in run("warn").stderr
    assert "soon gone" in run("warn", DALLE_COLLAB_TRACEBACK="1").stderr
    assert "soon gone" in run("warn", PYTHONWARNINGS="default").stderr


def test_the_traceback_is_shown_on_demand():
    done = run("value", DALLE_COLLAB_TRACEBACK="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.strip().splitlines()[-1] == "program: seen 3, expected 4"


def test_defects_keep_their_traceback():
    done = run("defect")
    assert done.returncode == 1
    assert "KeyError: 'key'" in done.stderr


def test_success_gives_0_and_usage_errors_2():
    assert run(None, "other").returncode == 0
    assert run(None, "unknown").returncode == 2


def test_ctrl_c_gives_one_line_and_130():
    process = subprocess.Popen(
        [sys.executable, "-c", APP, "fail", "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read().strip() == "program: stopped by Ctrl-C."


def test_a_hub_that_does_not_answer_is_explained(run_client):
    # Port 9 (discard) is closed on any machine that runs tests.
    done = run_client(
        "hub-tools", "publish", "folder", "tests/hub_tools", "org/x", HF_ENDPOINT="http://127.0.0.1:9", check=False
    )
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert "Cannot reach the Hub at http://127.0.0.1:9" in line
    assert "hub-tools serve" in line


def test_missing_repositories_revisions_and_files_are_explained(api, repo):
    for ask, words in (
        (lambda: api.model_info(f"{repo}-missing"), f"{repo}-missing is not on the Hub"),
        (lambda: api.model_info(repo, revision="nowhere"), "has no such revision"),
        (lambda: api.hf_hub_download(repo, "missing.txt"), "has no such file"),
    ):
        with pytest.raises(OSError) as raised:
            ask()
        explained = explain_error(raised.value)
        assert words in explained
        assert "\n" not in explained


@pytest.mark.parametrize(
    ("endpoint", "public"),
    [("https://huggingface.co", True), ("https://hf.co", True), ("http://127.0.0.1:8300", False),
     ("https://huggingface.co.evil.org", False)],
)  # fmt: skip
def test_only_the_public_hub_is_taken_for_it(endpoint, public):
    assert is_public_hub(endpoint) is public


PREPARE = "from hub_tools.endpoint import prepare_hub_client; prepare_hub_client()\n"
SHOW = "from huggingface_hub import constants; import os; print(constants.HF_HUB_DISABLE_XET, os.environ.get('X'))"


@pytest.mark.parametrize("order", [PREPARE + SHOW, "import huggingface_hub\n" + PREPARE + SHOW])
def test_xet_is_off_away_from_the_public_hub_whenever_the_client_is_imported(order):
    def disabled(**environment):
        done = subprocess.run(
            [sys.executable, "-c", order], capture_output=True, text=True, env=environment, timeout=60
        )
        return done.stdout.split()[0]

    assert disabled(HF_ENDPOINT="http://127.0.0.1:8300") == "True"
    assert disabled() == "False"


def test_the_endpoint_is_the_client_s_own():
    from huggingface_hub import constants

    assert current_endpoint() == constants.ENDPOINT


def test_a_home_that_cannot_be_written_names_the_variable_that_moves_it():
    home = Path(constants.HF_HOME)
    for number in (errno.EACCES, errno.EROFS, errno.ENOTDIR):
        for place in (home, home / "hub" / "models", home.parent):
            said = explain_error(OSError(number, "No", str(place)))
            assert said == (
                f"{place}: No. Downloads and peers' keys are kept in {home}: set HF_HOME to a folder that you may write"
            )
        said = explain_error(OSError(number, "No", str(config_folder() / "organiser")))
        assert said.endswith(f"kept in {config_folder()}: set XDG_CONFIG_HOME to a folder that you may write")
    for elsewhere in (OSError(errno.EACCES, "No", "pictures"), OSError(errno.ENOENT, "No", str(home / "absent"))):
        assert explain_error(elsewhere) == f"{elsewhere.filename}: No"
