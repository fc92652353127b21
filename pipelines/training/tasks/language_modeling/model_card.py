"""The model card of a language run's checkpoint."""

from hub_tools.run_files import LOSS_CURVE_FILE
from pipelines.training.metrics.evaluation.figure_table import evaluation_section
from pipelines.training.metrics.evaluation.held_out_losses import held_out_loss, perplexity
from pipelines.training.metrics.evaluation.model_index import model_index
from pipelines.training.run.task import CheckpointFacts
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.tasks.language_modeling.settings import FILL_MASK, LanguageSettings

USES = {
    True: 'fill = pipeline("fill-mask", model="{repository}")\n'
    'print(fill(f"Some text with a {{fill.tokenizer.mask_token}} in it."))',
    False: 'write = pipeline("text-generation", model="{repository}")\nprint(write("Some text", max_new_tokens=40))',
}
"""By whether the model fills masks."""


def model_card(run: TrainingRun, settings: LanguageSettings, facts: CheckpointFacts) -> str:
    """Return the text of the repository's README.md."""
    fills_masks = run.task == FILL_MASK
    loss = "not known yet" if facts.loss is None else f"{facts.loss:.4f}"
    peers = max((point["num_peers"] for point in facts.history), default=0)
    kind, of = ("masked", "masked tokens") if fills_masks else ("causal", "tokens")
    start = f"[{settings.start_from}](/{settings.start_from}) at `{settings.start_from_revision[:12]}`"
    begins = start if settings.start_from else "parameters drawn from the run's seed"
    return f"""---
library_name: transformers
pipeline_tag: {run.task}
tags: [collaborative-training, hivemind]
datasets: [{run.dataset_repository}]
{model_index(facts.repository, run, facts.evaluations, facts.figures, epoch=facts.epoch)}---

# {facts.repository}

A {kind} language model of type `{run.model_config["model_type"]}`, trained together by volunteers.

| | |
|---|---|
| epoch | {facts.epoch} of {run.num_epochs} |
| training loss | {loss} |
{_held_out_rows(facts, of)}
| parameters | {facts.num_parameters:,} |
| most peers at a time | {peers} |
| {of} that are predicted in an epoch | {run.target_batch_size} |
| longest sequence | {settings.sequence_length} tokens |
| dataset | [{run.dataset_repository}](/datasets/{run.dataset_repository}) at `{run.dataset_revision[:12]}` |
| began with | {begins} |
| optimizer | {run.optimizer}, {run.optimizer_bits}-bit statistics, peak learning rate {run.peak_learning_rate:g} |

![loss curve]({LOSS_CURVE_FILE})

{evaluation_section(facts.figures)}## Use

After `pip install transformers torch`, with no code of this project:

```python
from transformers import pipeline

{USES[fills_masks].format(repository=facts.repository)}
```

## Join

```bash
dalle-collab join {facts.repository}
```

## Older epochs

Each published epoch has a tag: `pipeline(..., revision="epoch-N")`. The optimizer states of the newest
{run.keep_optimizer_states} checkpoints are kept, so that the run can go back to them:
`dalle-collab run rollback {facts.repository} N`.

## Limits

The model was trained to predict {of} of its dataset and nothing else: it does not follow instructions, its sentences
may be false, and it repeats the data's biases. Perplexities compare only between models with the same tokenizer and the
same text. `optimizer_state.safetensors` and `run_state.json` let the run continue from here;
`checkpoint_manifest.json` lists the digests of all files, signed with a key of `publisher_keys.json`; `metrics/` holds
the run's history and contributions.
"""


def _held_out_rows(facts: CheckpointFacts, of: str) -> str:
    if not facts.evaluations:
        return f"| loss on {of} held out | not known yet |"
    loss = facts.evaluations[-1]["loss"]
    return (
        f"| loss on {of} held out | {held_out_loss(facts.evaluations[-1])} |\n"
        f"| perplexity on {of} held out | {perplexity(loss):.2f} |"
    )
