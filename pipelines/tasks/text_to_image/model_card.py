"""What the card of a text-to-image checkpoint says besides what every card says."""

import re
from collections.abc import Sequence

from hub_tools.printing.marked_up import plain
from modeling_dalle_collab import DalleCollabConfig
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.card.run_card import CardContext
from pipelines.features.publishing.metrics.evaluation.held_out_losses import held_out_loss
from pipelines.features.publishing.publishable_task import CheckpointFacts


def card_parts(run: TrainingRun, config: DalleCollabConfig, facts: CheckpointFacts) -> CardContext:
    """Return the text-to-image parts of the card."""
    repository, evaluations = facts.repository, facts.evaluations
    return CardContext(
        summary="A text-to-image transformer trained together by volunteers, in the manner of *Training Transformers "
        "Together*. It writes image codes for a caption, which a codec turns into a picture.",
        tags=["dalle"],
        use=_USE.format(repository=repository, caption=_example(facts.prompts)),
        load=f'AutoModel.from_pretrained("{repository}", revision="epoch-N", trust_remote_code=True)',
        rows=[
            ("held-out loss (nats)", held_out_loss(evaluations[-1]) if evaluations else "not known yet"),
            ("samples per epoch", f"{run.samples_per_epoch:,}"),
            ("a picture", f"{config.image_grid_size} x {config.image_grid_size} codes out of {config.codebook_size:,}"),
            ("longest caption", f"{config.text_sequence_length} tokens"),
        ],
        limits=_LIMITS.format(tokens=config.text_sequence_length, dataset=plain(run.dataset_repository)),
    )


def _example(prompts: Sequence[str]) -> str:
    """Return a caption that the run draws, if it can stand in quotes in a shell and in Python as it is."""
    return next((prompt for prompt in prompts if re.fullmatch(r"\w[\w ,.-]{0,119}", prompt)), "a caption")


_USE = """```bash
dalle-collab generate {repository} "{caption}" --candidates 128 --keep 4 --output grid.png
```

Or without this project, after `pip install torch transformers pillow`:

```python
from transformers import pipeline

draw = pipeline("text-to-image", model="{repository}", trust_remote_code=True)
draw("{caption}", num_images_per_prompt=4, seed=1)[0].save("picture.png")
```

`trust_remote_code=True` runs the code in this repository: read it first, and pin the commit that you read with
`revision=`. `AutoModel` and `AutoProcessor` load the parts; `output_type="pt"` gives tensors, `output_type="codes"`
image codes."""

_LIMITS = """The model knows what the pictures and captions of {dataset} show and no more; it repeats their biases, and
nothing filters what it draws. Captions in another language or style than the dataset's are not understood, and what
follows the first {tokens} tokens is cut off. The codec bounds how fine a picture can be. Whether drawings come close to
training pictures can be measured: `nearest_training_picture` of `dalle-collab evaluate`."""
