"""A demo's folder: who may use it, what stays of an earlier demo, and what is said about it."""

import io
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from pipelines.tools.demo.running import output_folder
from pipelines.tools.demo.running.output_folder import MARKER_FILE, demo_folder, sole_demo, what_differs
from pipelines.tools.demo.running.programs import VARIABLE, mark_of_all, start_program
from pipelines.tools.demo.running.progress_lines import ProgressLines
from pipelines.tools.process_table import processes_with_variable


@pytest.fixture
def told():
    return io.StringIO()


@pytest.fixture
def lines(told):
    return ProgressLines(Console(file=told, width=400))


def test_a_second_call_keeps_what_is_there_and_says_so(tmp_path, lines, told):
    output = tmp_path / "demo-output"
    with demo_folder(output, dict(num_epochs=3), lines):
        (output / "work" / "pictures").mkdir()
    with demo_folder(output, dict(num_epochs=3), lines):
        assert (output / "work" / "pictures").is_dir()
    assert f"Going on with what is in {output}; to begin anew, delete it." in told.getvalue()


def test_other_settings_begin_anew_and_are_named(tmp_path, lines, told):
    output = tmp_path / "demo-output"
    with demo_folder(output, dict(num_epochs=3, top_k=64), lines):
        (output / "grid.png").touch()
    with demo_folder(output, dict(num_epochs=5, top_k=64), lines):
        assert not (output / "grid.png").exists() and (output / "work").is_dir()
    assert "has a demo of other settings (num_epochs was 3 and is 5): beginning anew." in told.getvalue()


@pytest.mark.parametrize(
    "text", ["Written by dalle-collab demo; the next demo removes this folder's content.\n", "", "[1]"]
)
def test_what_an_older_version_has_written_begins_anew(tmp_path, lines, told, text):
    (tmp_path / MARKER_FILE).write_text(text)
    (tmp_path / "grid.png").touch()
    with demo_folder(tmp_path, dict(num_epochs=5), lines):
        assert not (tmp_path / "grid.png").exists()
    assert "has a demo of an older version: beginning anew." in told.getvalue()


def test_another_version_of_the_package_is_a_difference(tmp_path, lines, told):
    with demo_folder(tmp_path, {}, lines):
        marker = tmp_path / MARKER_FILE
        marker.write_text(marker.read_text().replace('"version": "', '"version": "9'))
    with demo_folder(tmp_path, {}, lines):
        assert "version was" in told.getvalue() and "beginning anew" in told.getvalue()


def test_differences_are_named_shortly():
    assert what_differs(dict(a=1, b=[1]), dict(a=1, b=[1])) == ""
    assert what_differs(dict(a=1), dict(b=2)) == "a was 1 and is null, b was null and is 2"
    assert len(what_differs(dict(a="x" * 1000), dict(a="y"))) < 80


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path, lines):
    (tmp_path / "thesis.txt").write_text("three years of work")
    with (
        pytest.raises(ValueError, match=r"files that are not a demo's. Choose another folder: --output NAME"),
        demo_folder(tmp_path, {}, lines),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_and_a_place_that_cannot_be_written_to_are_refused_in_a_line(tmp_path, lines):
    (tmp_path / "file").touch()
    for output, message in (
        (tmp_path / "file", "is a file, expected a folder"),
        (tmp_path / "file" / "below", "cannot be written to .*Choose another folder: --output NAME"),
    ):
        with pytest.raises(ValueError, match=message), demo_folder(output, {}, lines):
            pass


def test_a_full_disk_is_said_before_anything_begins(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(output_folder, "GIGABYTES_NEEDED", 1e9)
    with (
        pytest.raises(ValueError, match=r"GB free, a demo needs 1e\+09\. Free some"),
        demo_folder(tmp_path, {}, lines),
    ):
        pass


def test_a_second_demo_at_the_same_time_names_the_first(tmp_path, lines):
    with (
        sole_demo(tmp_path, lines),
        pytest.raises(ValueError, match=f"in use by a demo that runs as process {os.getpid()}. Wait until"),
        demo_folder(tmp_path, {}, lines),
    ):
        pass
    with sole_demo(tmp_path, lines):
        pass


def test_frozen_orphans_of_a_killed_demo_are_ended_before_another_begins(tmp_path, lines, told):
    orphan = start_program([sys.executable, "-c", "input()"], tmp_path, "orphan", os.environ, stdout=subprocess.PIPE)
    os.kill(orphan.process.pid, signal.SIGSTOP)
    with demo_folder(tmp_path, {}, lines):
        assert processes_with_variable(VARIABLE, mark_of_all(tmp_path), or_longer=True) == []
    assert "Ended what an interrupted demo had left running (1 process)." in told.getvalue()
    orphan.process.wait()
    orphan.process.stdout.close()
