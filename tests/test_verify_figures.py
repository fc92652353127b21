"""`make verify-figures` finds a stale figure, in a document or in the results, and says it in words."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path):
    """What the command reads, to be changed."""
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    for folder in ("benchmarks", "long"):
        shutil.copytree(ROOT / "tests" / folder / "results", tmp_path / "tests" / folder / "results")
    for name in ("verify_figures.py", "test_measured_figures.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    return tmp_path


def verify(folder):
    return subprocess.run(
        [sys.executable, "tests/verify_figures.py"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_figures_as_measured_pass_and_stale_ones_are_named(copy):
    done = verify(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 stale." in done.stdout and "Nothing compares these results" in done.stdout
    page = copy / "docs" / "faults.md"
    page.write_text(page.read_text(encoding="utf-8").replace("In 1,038 epochs", "In 2,038 epochs"), encoding="utf-8")
    (copy / "tests/benchmarks/results/new.json").write_text("{}")
    done = verify(copy)
    assert done.returncode == 1 and ", 2 stale." in done.stdout
    assert "docs/faults.md is stale.\n  measured: In 1,038 epochs" in done.stdout
    assert "it says:  In 2,038 epochs" in done.stdout, "the line that is to be changed"
