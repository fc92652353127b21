"""A codec and a CLIP trained for a demo's pictures, where none are shipped for them."""

from collections.abc import Sequence

from pipelines.demo.demo_plan import DemoPlan
from pipelines.demo.running.finished_work import digest_of
from pipelines.demo.stages import Stages


def train_codec_and_clip(stages: Stages, plan: DemoPlan, *, codec_options: Sequence[str], clip_steps: int) -> None:
    """Train both on the pictures that the model trains on, into the plan's folders.

    Raises:
        StageError: a command failed.
    """
    pictures = str(plan.pictures_to_train_on)
    stages.once(
        "codec_training", "Training a codec for these pictures",
        lambda: stages.run(
            "dalle-collab", "codec", "train", pictures, "--output", str(plan.codec_folder),
            *codec_options, log_name="codec",
        ),
        outputs=[plan.codec_folder],
    )  # fmt: skip
    stages.once(
        "clip_training", "Training a CLIP for these pictures",
        lambda: stages.run(
            "dalle-collab", "clip", "train", pictures, "--output", str(plan.clip_folder),
            "--steps", str(clip_steps),
            "--vocab-size", str(plan.vocabulary_size), "--codec", str(plan.codec_folder),
            # A run goes on with a CLIP that ranks at random.
            *plan.caption_options, "--force", log_name="clip",
        ),
        inputs=digest_of(plan.codec_folder), outputs=[plan.clip_folder],
    )  # fmt: skip
