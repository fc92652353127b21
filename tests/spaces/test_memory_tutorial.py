"""The tutorial's notebook runs from beginning to end in a fresh process, and what it measures is what it promises."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "spaces" / "landing_page" / "memory_efficient_training.ipynb"
CARD = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
---
"""
NUM_TEXTS = 120
NUM_STEPS = 10
MODEL, DATASET = "org/tiny-gpt2", "org/tiny-c4"


def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def test_the_notebook_is_committed_without_outputs():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) >= 8
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []


def text(number):
    return " ".join(
        f"Sentence {n} of text {number} says that {n * number % 97} birds sat on a branch." for n in range(20)
    )


@pytest.fixture(scope="module")
def published(hub, tmp_path_factory):
    """A tiny random GPT-2 with its tokenizer, and texts as C4 keeps them, on the embedded Hub."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import disable_progress_bars
    from transformers import GPT2Config, GPT2LMHeadModel

    from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer

    constants.HF_HUB_DISABLE_XET = True
    disable_progress_bars()
    folder = tmp_path_factory.mktemp("published")
    tokenizer = train_tokenizer(map(text, range(NUM_TEXTS)), 400, model_max_length=64)
    tokenizer.save_pretrained(folder / "model")
    special = dict(bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=64, n_layer=6, n_head=4, **special)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    (folder / "dataset" / "en").mkdir(parents=True)
    (folder / "dataset" / "README.md").write_text(CARD)
    rows = [dict(text=text(number), timestamp="2019-04-25T12:57:54Z", url="") for number in range(NUM_TEXTS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    shard = folder / "dataset" / "en" / "c4-train.00000-of-00001.json.gz"
    shard.write_bytes(gzip.compress(lines.encode()))
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    for repository, kind, part in ((MODEL, "model", "model"), (DATASET, "dataset", "dataset")):
        api.create_repo(repository, repo_type=kind)
        api.upload_folder(repo_id=repository, repo_type=kind, folder_path=str(folder / part))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_it_runs_from_beginning_to_end_and_each_technique_saves_what_it_promises(hub, published, tmp_path):
    pytest.importorskip("nbclient", reason="nbclient is missing: pip install nbclient ipykernel")
    settings = dict(MODEL=MODEL, DATASET=DATASET, STEPS=NUM_STEPS, SEQUENCE_LENGTH=64, LEARNING_RATE="3e-3")
    environment = {
        **os.environ,
        **hub.environment(hub.alice_token),
        **{f"TUTORIAL_{name}": str(value) for name, value in settings.items()},
        **{name: str(tmp_path) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")},
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-c",
        "from nbclient.cli import main; main()",
        "--output",
        str(tmp_path / "run"),
        NOTEBOOK,
    ]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    outputs = [
        output
        for cell in json.loads((tmp_path / "run.ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
    ]
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3

    linear, dynamic, blockwise = (
        float(re.search(rf"^{name}: off by ([\d.]+) %", printed, re.MULTILINE)[1])
        for name in ("linear, one scale", "dynamic, one scale", "dynamic, block-wise")
    )
    assert linear > dynamic > blockwise and blockwise < 3
    assert float(re.search(r"these five lines differ by ([\d.]+) %", printed)[1]) < 0.1
    saved = {
        technique: (float(before), float(after))
        for technique, before, after in re.findall(
            r"^([\w -]+): \w+ ([\d.]+) -> ([\d.]+) bytes a parameter", printed, re.M
        )
    }
    assert saved["8-bit Adam"][0] == pytest.approx(8, abs=0.05) and 2 <= saved["8-bit Adam"][1] < 3
    assert saved["checkpointing"][1] < saved["checkpointing"][0] / 2
    assert saved["offload"] == (saved["8-bit Adam"][1], 0)
    first, last = map(
        float, re.search(rf"{NUM_STEPS} steps: loss ([\d.]+) at the beginning, ([\d.]+)", printed).groups()
    )
    assert last < first - 0.2
