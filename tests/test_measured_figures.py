"""The tables of figures in the documents are what the benchmarks' last runs wrote."""

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


ATTACKS = {
    "sign flip, ten times as long": "sign flip x10",
    "ALIE, hidden in the noise": "ALIE, z of the paper",
    "ALIE, z = 10": "ALIE, z = 10",
    "IPM, epsilon 0.1": "IPM, epsilon 0.1",
    "IPM, epsilon 10": "IPM, epsilon 10",
}
DIVERGED = 1000


def measured(name):
    return json.loads((ROOT / f"tests/benchmarks/results/{name}.json").read_text(encoding="utf-8"))["rows"]


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("label", ROWS)
def test_a_row_of_the_model_beside_dalle_pytorch_is_as_measured(label):
    case, metric = ROWS[label]
    (row,) = [row for row in measured("model") if row["case"].startswith(case) and row["metric"].startswith(metric)]
    ours, peer = row["ours"], row["peer"]
    better, worse = ("less", "more") if row["unit"] == "MiB" else ("faster", "slower")
    ratio = ours / peer if row["unit"] == "1/s" else peer / ours
    said = f"{_short(ratio)} x {better}" if ratio >= 1 else f"{_short(1 / ratio)} x {worse}"
    assert f"| {label} | {_short(ours)} | {_short(peer)} | {said} |" in page("measurements")


@pytest.mark.parametrize("label", ATTACKS)
def test_a_row_of_the_losses_under_attack_is_as_measured(label):
    rows = {
        row["case"].partition(":")[0]: row
        for row in measured("robust_aggregation")
        if row["case"].endswith(f": {ATTACKS[label]}") and row["metric"].endswith("CenteredClip")
    }
    single, means = rows["single gradients"], rows["means of gradients"]
    undefended = "diverged" if single["peer"] >= DIVERGED else _short(single["peer"] / single["floor"])
    said = [undefended, *(f"{row['ratio_to_floor']:.2f}" for row in (single, means))]
    assert f"| {label} | {' | '.join(said)} |" in page("faults")


def _short(value):
    """Return a number with three significant digits, as the table has it."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
