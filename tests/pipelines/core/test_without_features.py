"""The core is tested without its features: its tests are found where those are not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OF_TASKS = ("__init__.py", "publishing", "memory_estimate")
"""What the tasks need, with which the core is tested: how a run is shown, and how much memory it takes."""


@pytest.mark.long
def test_the_tests_of_the_core_are_found_where_no_other_feature_is_installed(tmp_path):
    for name in ("dalle_collab", "hub_tools", "modeling_dalle_collab", "setup.cfg", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for place in ("pipelines", "pipelines/features", "tests", "tests/pipelines"):
        (tmp_path / place).mkdir()
        for path in (ROOT / place).iterdir():
            is_left_out = place == "pipelines/features" and path.name not in OF_TASKS
            if not (is_left_out or path.name == "pipelines" or (place == "pipelines" and path.name == "features")):
                (tmp_path / place / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/pipelines/core"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
