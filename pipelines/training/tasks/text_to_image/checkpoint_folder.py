"""What a published checkpoint consists of: model, optimizer, run state, code to load it, a card and a loss curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from hub_tools.run_files import LOSS_CURVE_FILE
from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.image_codes.codec_code import copy_codec_code
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.checkpoint_tensors import RunState, save_training_state


def write_checkpoint(
    folder: Path,
    *,
    model: DalleCollabForConditionalGeneration,
    processor: DalleCollabProcessor,
    optimizer: torch.optim.Optimizer,
    state: RunState,
) -> None:
    """Write all that a checkpoint's manifest lists into an empty folder.

    Raises:
        OSError: it cannot be written; the disk may be full.
    """
    try:
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        copy_codec_code(folder)
        save_training_state(folder, model, optimizer, state)
    except Exception as error:
        # safetensors and tokenizers say in errors of their own what the system has said, the latter in plain ones.
        if isinstance(error, SafetensorError) or type(error) is Exception:
            raise OSError(f"{folder} cannot be written: {error}") from error
        raise


def model_card(
    repository: str,
    run: TrainingRun,
    num_parameters: int,
    state: RunState,
    history: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text of the repository's README.md."""
    loss = "not known yet" if state.loss is None else f"{state.loss:.4f}"
    held_out = f"{evaluations[-1]['loss']:.4f} at epoch {evaluations[-1]['epoch']}" if evaluations else "not known yet"
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
| loss on held-out records | {held_out} |
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

## Older epochs

Each published epoch has a tag: `AutoModel.from_pretrained("{repository}", revision="epoch-N", trust_remote_code=True)`.
The optimizer states of the newest {run.keep_optimizer_states} checkpoints are kept, so that the run can go back to
them: `dalle-collab run rollback {repository} N`.

## Limits

The model knows what its training data shows and no more; it repeats the data's biases. `optimizer_state.safetensors`
and `run_state.json` let the run continue from here; `checkpoint_manifest.json` lists the digests of all files, signed
with a key of `publisher_keys.json`; `metrics/` holds the run's history and contributions.
"""
