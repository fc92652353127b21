"""The notebook for researchers runs where only transformers, torch and what it names are installed."""

import re

import pytest
from isolation import environment_without, packages_beside
from notebooks import executed, outputs_of
from support_files import ROOT

NOTEBOOK = ROOT / "docs" / "examples" / "research.ipynb"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_the_research_notebook_runs_without_this_project(tmp_path):
    named = re.search(r"`pip install ([^`]+)`", NOTEBOOK.read_text())[1].split()
    assert named == ["torch", "transformers", "accelerate", "peft", "datasets"]
    hidden = packages_beside([*named, "ipykernel"])
    assert {"pipelines", "hub_tools", "hivemind", "taming", "torchvision", "einops"} <= hidden
    environment = environment_without(hidden, visible_folder=ROOT / "modeling_dalle_collab")
    settings = dict(CLONE=str(ROOT), HF_HOME=str(tmp_path / "hub"), HF_HUB_OFFLINE="1", TMPDIR=str(tmp_path))
    said = "\n".join(outputs_of(executed(NOTEBOOK, environment | settings, tmp_path)))
    for line in (
        r"codes of 2 captions, 3 each: \(6, 16\)",
        r"different codes in each picture: \[16, 16\]",
        "codes when stopped after a row: 4",
        r"log-likelihood of the best beam -\d",
        r"'input_ids': \(4,\), 'image_codes': \(16,\)",
        "held-out loss .* after training",
        "with the merged adapter",
        r"training loss \d",
        r"layer 6: \d+% right",
        r"position\): \(8, 2, 20, 20\)",
        r"on disk: \d[\d,]+ parameters of",
    ):
        assert re.search(line, said), f"{line}\n{said}"
