"""The core is tested without its features: its tests pass where none of them is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_core_passes_its_tests_where_no_feature_is_installed(tmp_path):
    for name in ("dalle_collab", "hub_tools", "modeling_dalle_collab", "setup.cfg", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for place in ("pipelines", "pipelines/features", "tests", "tests/pipelines"):
        (tmp_path / place).mkdir()
        for path in (ROOT / place).iterdir():
            is_feature = place == "pipelines/features" and path.name != "__init__.py"
            if not (is_feature or path.name == "pipelines" or (place == "pipelines" and path.name == "features")):
                (tmp_path / place / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow",
         "tests/pipelines/core"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
