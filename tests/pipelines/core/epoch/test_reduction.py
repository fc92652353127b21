"""Which way to average a run's settings ask for, and that the core has one where no feature is installed."""

import json
import os
import subprocess
import sys

import pytest
from support_files import ROOT, SUPPORT
from swarm_of_processes import tiny_run

from pipelines.core.epoch.reduction import Reduction, reduction_of

SPARSE = tiny_run(local_steps=2, synchronisation="sparse", aggregation_rule="mean")


def test_a_run_that_needs_a_feature_which_is_not_installed_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "pipelines.features", None)
    for name in [name for name in sys.modules if name.startswith("pipelines.features.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ValueError, match=r"asks for SparseReduction, .* lacks pipelines.features.* Cure: pip install -U dalle-collab"
    ):
        reduction_of(SPARSE)
    assert type(reduction_of(tiny_run())) is Reduction


@pytest.mark.slow
def test_the_core_averages_where_no_feature_is_installed(tmp_path):
    for package in ("hub_tools", "modeling_dalle_collab"):
        (tmp_path / package).symlink_to(ROOT / package)
    (tmp_path / "pipelines").mkdir()
    for path in (ROOT / "pipelines").iterdir():
        if path.name != "features":
            (tmp_path / "pipelines" / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, SUPPORT / "core_alone.py"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=240, check=False, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "pipelines.core.epoch.assembly" in found["modules"]
    assert found["averages"] == [[2.0] * 4] * 2
