"""What the auxiliary peer puts on the Model Hub: model, optimizer, run state, history and a card, in one commit."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import torch
from huggingface_hub import HfApi

from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.image_codes.codec_code import copy_codec_code
from pipelines.training.checkpoints import RunState, save_training_state
from pipelines.training.training_run import TrainingRun

METRICS_FILE = "metrics.json"
LOSS_CURVE_FILE = "loss_curve.png"


def write_checkpoint(
    folder: Path,
    *,
    repository: str,
    run: TrainingRun,
    model: DalleCollabForConditionalGeneration,
    processor: DalleCollabProcessor,
    optimizer: torch.optim.Optimizer,
    state: RunState,
    history: list[dict[str, Any]],
) -> None:
    """Write everything a checkpoint consists of into an empty folder."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    copy_codec_code(folder)
    save_training_state(folder, model, optimizer, state)
    (folder / METRICS_FILE).write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")
    draw_loss_curve(history, folder / LOSS_CURVE_FILE)
    card = model_card(repository, run, model.num_parameters(), state, history)
    (folder / "README.md").write_text(card, encoding="utf-8")


def publish_checkpoint(repository: str, folder: Path, epoch: int) -> str:
    """Upload the folder in one commit; return the commit's id. What is already there is not sent again."""
    info = HfApi().upload_folder(
        repo_id=repository, folder_path=str(folder), commit_message=f"Checkpoint of epoch {epoch}"
    )
    return info.oid


def draw_loss_curve(history: list[dict[str, Any]], path: Path) -> None:
    """Draw loss and active peers against the epoch; an empty history gives an empty frame."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = [point["epoch"] for point in history]
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(8, 5), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    upper.plot(epochs, [point["loss"] for point in history], color="#4c72b0")
    upper.set_ylabel("training loss")
    upper.set_yscale("log")
    upper.grid(alpha=0.3, which="both")
    lower.step(epochs, [point["num_peers"] for point in history], color="#dd8452", where="post")
    lower.set_ylabel("peers")
    lower.set_ylim(bottom=0)
    lower.yaxis.get_major_locator().set_params(integer=True)
    lower.set_xlabel("epoch")
    lower.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def model_card(
    repository: str, run: TrainingRun, num_parameters: int, state: RunState, history: list[dict[str, Any]]
) -> str:
    """Return the text of the repository's README.md."""
    loss = "not known yet" if state.loss is None else f"{state.loss:.4f}"
    peers = max((point["num_peers"] for point in history), default=0)
    return f"""---
library_name: transformers
pipeline_tag: text-to-image
tags: [collaborative-training, hivemind, dalle]
datasets: [{run.dataset_repository}]
---

# {repository}

A text-to-image transformer trained together by volunteers, in the manner of *Training Transformers Together*.

| | |
|---|---|
| epoch | {state.epoch} of {run.num_epochs} |
| training loss | {loss} |
| parameters | {num_parameters:,} |
| most peers at a time | {peers} |
| samples per epoch | {run.target_batch_size} |
| dataset | [{run.dataset_repository}](/datasets/{run.dataset_repository}) at `{run.dataset_revision[:12]}` |
| optimizer | LAMB, {run.optimizer_bits}-bit statistics, peak learning rate {run.peak_learning_rate:g} |

![loss curve]({LOSS_CURVE_FILE})

## Draw

```bash
dalle-collab generate {repository} "a caption" --candidates 128 --keep 4 --output grid.png
```

Or with nothing of this project, after `pip install transformers taming-transformers-rom1504 einops`:

```python
from transformers import pipeline

draw = pipeline("text-to-image", model="{repository}", trust_remote_code=True)
draw("a caption", num_images_per_prompt=4, seed=1)[0].save("picture.png")
```

`AutoModel` and `AutoProcessor` load the parts; `output_type="codes"` gives image codes and needs `transformers` alone.

## Join

```bash
dalle-collab join {repository}
```

## Limits

The model knows what its training data shows and no more; it repeats the data's biases. `optimizer_state.safetensors`,
`run_state.json` and `{METRICS_FILE}` let the run continue from here.
"""
