"""What the card of a language run's checkpoint says besides what every card says."""

from urllib.parse import quote

from hub_tools.printing.marked_up import code, plain
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.card.run_card import CardContext
from pipelines.features.publishing.metrics.evaluation.held_out_losses import held_out_loss, perplexity
from pipelines.features.publishing.publishable_task import CheckpointFacts
from pipelines.tasks.language_modeling.settings import FILL_MASK, LanguageSettings

USES = {
    True: 'fill = pipeline("fill-mask", model="{repository}")\n'
    'print(fill(f"Some text with a {{fill.tokenizer.mask_token}} in it."))',
    False: 'write = pipeline("text-generation", model="{repository}")\nprint(write("Some text", max_new_tokens=40))',
}
"""By whether the model fills masks."""


def card_parts(run: TrainingRun, settings: LanguageSettings, facts: CheckpointFacts) -> CardContext:
    """Return the language model's parts of the card."""
    fills_masks = run.task == FILL_MASK
    architecture = code(run.model_config["model_type"])
    kind, of = ("masked", "masked tokens") if fills_masks else ("causal", "tokens")
    start = (
        f"[{plain(settings.start_from)}](/{quote(settings.start_from)}) at {code(settings.start_from_revision[:12])}"
    )
    return CardContext(
        summary=f"A {kind} language model of type {architecture}, trained together by volunteers.",
        use=_USE.format(example=USES[fills_masks].format(repository=facts.repository)),
        load='pipeline(..., revision="epoch-N")',
        rows=[
            *_held_out_rows(facts, of),
            (f"{of} that are predicted in an epoch", f"{run.samples_per_epoch:,}"),
            ("longest sequence", f"{settings.sequence_length} tokens"),
            ("began with", start if settings.start_from else "parameters drawn from the run's seed"),
        ],
        limits=f"The model was trained to predict {of} of its dataset and nothing else: it does not follow "
        "instructions, its sentences may be false, and it repeats the data's biases. Perplexities compare only between "
        "models with the same tokenizer and the same text.",
    )


_USE = """After `pip install transformers torch`, with no code of this project:

```python
from transformers import pipeline

{example}
```"""


def _held_out_rows(facts: CheckpointFacts, of: str) -> list[tuple[str, str]]:
    if not facts.evaluations:
        return [(f"held-out loss (nats), on {of}", "not known yet")]
    loss = facts.evaluations[-1]["loss"]
    return [
        (f"held-out loss (nats), on {of}", held_out_loss(facts.evaluations[-1])),
        (f"held-out perplexity, on {of}", f"{perplexity(loss):.2f}"),
    ]
