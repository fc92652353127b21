"""The card of a published text-to-image checkpoint."""

from hub_tools.run_files import LOSS_CURVE_FILE
from pipelines.training.metrics.evaluation.figure_table import evaluation_section
from pipelines.training.metrics.evaluation.held_out_losses import held_out_loss
from pipelines.training.metrics.evaluation.model_index import model_index
from pipelines.training.run.task import CheckpointFacts
from pipelines.training.run.training_run import TrainingRun


def model_card(run: TrainingRun, facts: CheckpointFacts) -> str:
    """Return the text of the repository's README.md."""
    repository, evaluations = facts.repository, facts.evaluations
    loss = "not known yet" if facts.loss is None else f"{facts.loss:.4f}"
    held_out = held_out_loss(evaluations[-1]) if evaluations else "not known yet"
    peers = max((point["num_peers"] for point in facts.history), default=0)
    return f"""---
library_name: transformers
pipeline_tag: text-to-image
tags: [collaborative-training, hivemind, dalle]
datasets: [{run.dataset_repository}]
{model_index(facts.repository, run, facts.evaluations, facts.figures, epoch=facts.epoch)}---

# {repository}

A text-to-image transformer trained together by volunteers, in the manner of *Training Transformers Together*.

| | |
|---|---|
| epoch | {facts.epoch} of {run.num_epochs} |
| training loss | {loss} |
| loss on held-out records | {held_out} |
| parameters | {facts.num_parameters:,} |
| most peers at a time | {peers} |
| samples per epoch | {run.target_batch_size} |
| dataset | [{run.dataset_repository}](/datasets/{run.dataset_repository}) at `{run.dataset_revision[:12]}` |
| optimizer | {run.optimizer}, {run.optimizer_bits}-bit statistics, peak learning rate {run.peak_learning_rate:g} |

![loss curve]({LOSS_CURVE_FILE})

{evaluation_section(facts.figures)}## Draw

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
