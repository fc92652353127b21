"""The README's table of the model beside dalle-pytorch is what the benchmark's last run wrote."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = {
    "small: training step, 4 samples, reversible (s)": ("small, batch 4, reversible", "training step"),
    "paper: training step, 1 sample, reversible (s)": ("paper, batch 1, reversible", "training step"),
    "paper: the same, activations stored (s)": ("paper, batch 1, none", "training step"),
    "paper: peak memory of that step, stored (MiB)": ("paper, batch 1, none", "peak of a step"),
    "paper: peak memory, reversible (MiB)": ("paper, batch 1, reversible", "peak of a step"),
    "small: codes per second, 1 candidate": ("small, 1 candidate of a caption", "image codes"),
    "small: codes per second, 8 candidates": ("small, 8 candidates of a caption", "image codes"),
    "paper: codes per second, 1 candidate": ("paper, 1 candidate of a caption", "image codes"),
    "paper: codes per second, 8 candidates": ("paper, 8 candidates of a caption", "image codes"),
    "paper: reading a caption for 128 candidates (s)": ("paper, 128 candidates", "reading the caption"),
    "paper: cache of one of 8 candidates (MiB)": ("paper, 8 candidates of a caption", "cache of a candidate"),
}


@pytest.fixture(scope="module")
def measured():
    return json.loads((ROOT / "tests/benchmarks/results/model.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("label", ROWS)
def test_a_row_of_the_table_is_as_measured(measured, label):
    case, metric = ROWS[label]
    (row,) = [row for row in measured if row["case"].startswith(case) and row["metric"].startswith(metric)]
    ours, peer = row["ours"], row["peer"]
    better, worse = ("less", "more") if row["unit"] == "MiB" else ("faster", "slower")
    ratio = ours / peer if row["unit"] == "1/s" else peer / ours
    said = f"{_short(ratio)} x {better}" if ratio >= 1 else f"{_short(1 / ratio)} x {worse}"
    assert f"| {label} | {_short(ours)} | {_short(peer)} | {said} |" in (ROOT / "README.md").read_text("utf-8")


def _short(value):
    """Return a number with three significant digits, as the table has it."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
