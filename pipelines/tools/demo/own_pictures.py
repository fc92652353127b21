"""`dalle-collab start`: from a folder of pictures to a run that others can join, with one command."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hub_tools.printing.printable import one_line
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy, drop_reason
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage
from pipelines.tasks.text_to_image.reel_captions import captions_to_draw
from pipelines.tools.demo.configured_hub import ConfiguredHub
from pipelines.tools.demo.demo_plan import DemoPlan, split_name
from pipelines.tools.demo.running.finished_work import digest_of
from pipelines.tools.demo.running.progress_lines import ProgressLines
from pipelines.tools.demo.stages import Stages
from pipelines.tools.demo.summary import DemoSummary, summarise_demo, write_summary
from pipelines.tools.demo.whole_line import run_whole_line

NUM_CAPTIONS, NUM_REEL_CAPTIONS, NUM_SHOWN = 12, 6, 10
FEWEST_PICTURES = 100
"""With fewer there is nothing to learn from, and nothing to hold out."""

VOCABULARY_SIZE = 1024
PICTURE_SIZES = ((0.5, 32), (4.0, 48), (float("inf"), 64))
"""Pixels of a side, by the hours below which they are taken. A code stands for 4 x 4 pixels at each size: for 8 x 8 the
codec blurs what is small."""

PIXELS_OF_A_CODE = 4

CODEC_SHARE, MOST_CODEC_MINUTES = 0.15, 10.0
OTHER_SHARE, MOST_OTHER_MINUTES = 0.25, 10.0
"""The CLIP, encoding, publishing and drawing, for a few thousand pictures."""

CLIP_STEPS, FEWEST_CLIP_STEPS = 1500, 300
"""In an hour, and at least."""


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """How long the stages of a run from one command may take."""

    picture_size: int
    codec_minutes: float
    clip_steps: int
    training_hours: float

    @classmethod
    def of(cls, hours: float) -> "TimePlan":
        """Divide so many hours. Raises ValueError if they are too few."""
        if not 0.1 <= hours < 10_000:
            raise ValueError(f"--hours is {hours:g}; expected 0.1 (six minutes) or more, such as 8 for a night.")
        total = 60 * hours
        codec, other = min(CODEC_SHARE * total, MOST_CODEC_MINUTES), min(OTHER_SHARE * total, MOST_OTHER_MINUTES)
        steps = max(FEWEST_CLIP_STEPS, round(CLIP_STEPS * min(1.0, hours)))
        return cls(
            picture_size=next(size for most, size in PICTURE_SIZES if hours < most),
            codec_minutes=codec,
            clip_steps=steps,
            training_hours=(total - codec - other) / 60,
        )

    def codec_options(self) -> tuple[str, ...]:
        """Return the options of `codec train`."""
        sizes = {"--image-size": self.picture_size, "--grid": self.picture_size // PIXELS_OF_A_CODE}
        return (*(f"{name}={value}" for name, value in sizes.items()), f"--minutes={self.codec_minutes:.3g}")


def run_own_pictures(
    pictures: Path,
    name: str,
    output: Path,
    console: Console,
    *,
    hours: float,
    reading: ReadingOptions,
    is_online: bool = False,
    announce: Sequence[str] = (),
    num_trainers: int = 2,
) -> DemoSummary:
    """Go from a folder of pictures to a trained run, or on with an interrupted one; return its figures.

    Raises:
        StageError: a command failed; the next call goes on with what is finished.
        FileNotFoundError, ValueError: there is no such folder, its pictures or captions cannot be used, or the name.
    """
    organisation, short_name = split_name(name)
    time_plan = TimePlan.of(hours)
    lines = ProgressLines(console)
    with lines.doing("Reading the captions"):
        captions = read_captions(pictures, reading)
    check_captions(pictures, captions)
    for key, caption in list(captions.items())[:: -(-len(captions) // NUM_SHOWN)]:
        lines.say(one_line(f"  {key}: {caption}"))
    lines.say(f"{len(captions):,} captioned pictures, {len(set(captions.values())):,} different captions.")
    if is_online:
        hub = ConfiguredHub()
        user = hub.check_namespace(organisation)
        lines.say(
            f"Publishing to {hub.endpoint} as {user}: image codes, captions, codec, CLIP and model, for everybody."
        )
    plan = DemoPlan(
        organisation=organisation,
        name=short_name,
        output=output,
        own_pictures=pictures,
        reading=reading,
        is_online=is_online,
        announce=tuple(announce),
        codec_folder=output / "work" / "codec",
        clip_folder=output / "work" / "clip",
        run_settings=dict(reel_prompts=captions_to_draw(captions.values(), NUM_REEL_CAPTIONS)),
        create_options=("--preset", "small", "--hours", f"{time_plan.training_hours:.3g}"),
        vocabulary_size=VOCABULARY_SIZE,
        num_trainers=num_trainers,
        micro_batch_size=48,
        source=dict(source=str(pictures.resolve()), num_pictures=len(captions), hours=hours),
        opens_spaces=True,
        shows_commands=True,
    )
    result = run_whole_line(
        plan,
        lambda *_: None,
        lambda: captions_to_draw(captions.values(), NUM_CAPTIONS),
        console,
        train_models=lambda stages: train_codec_and_clip(stages, plan, time_plan),
    )
    summary = summarise_demo(result, picture_bytes=mean_bytes(pictures, reading))
    write_summary(
        output, f"{name}, trained together", summary, result,
        grid_title="Captions of the collection, the best four pictures of each",
    )  # fmt: skip
    return summary


def train_codec_and_clip(stages: Stages, plan: DemoPlan, time_plan: TimePlan) -> None:
    """Train a codec and a CLIP on the pictures that the model trains on, into the plan's folders.

    Raises:
        StageError: a command failed.
    """
    pictures = str(plan.pictures_to_train_on)
    stages.once(
        "codec_training", "Training a codec for these pictures",
        lambda: stages.run(
            "dalle-collab", "codec", "train", pictures, "--output", str(plan.codec_folder),
            *time_plan.codec_options(), log_name="codec",
        ),
        outputs=[plan.codec_folder],
    )  # fmt: skip
    stages.once(
        "clip_training", "Training a CLIP for these pictures",
        lambda: stages.run(
            "dalle-collab", "clip", "train", pictures, "--output", str(plan.clip_folder),
            "--steps", str(time_plan.clip_steps),
            "--vocab-size", str(plan.vocabulary_size), "--codec", str(plan.codec_folder),
            # A run goes on with a CLIP that ranks at random.
            *plan.caption_options, "--force", log_name="clip",
        ),
        inputs=digest_of(plan.codec_folder), outputs=[plan.clip_folder],
    )  # fmt: skip


def read_captions(pictures: Path, reading: ReadingOptions) -> dict[str, str]:
    """Return the captions of a folder's usable pictures, by the names of the pictures.

    Raises:
        FileNotFoundError, ValueError: there is no such folder, or no picture in it.
    """
    samples = (sample for found in find_sources([pictures], reading) for sample in found.samples())
    policy = FilterPolicy(reading=reading)
    return {
        sample.key: sample.caption
        for sample in samples
        if isinstance(sample, CaptionImage) and drop_reason(sample, policy) is None
    }


def check_captions(pictures: Path, captions: dict[str, str]) -> None:
    """Raise ValueError, with what helps, if a folder has too few captioned pictures."""
    if len(captions) >= FEWEST_PICTURES:
        return
    raise ValueError(
        f"{pictures} has {len(captions)} pictures with usable captions; expected {FEWEST_PICTURES} or more. Captions "
        "are texts beside pictures (robin.txt for robin.jpg) or a table (captions.csv with file_name and caption); "
        "--caption-from name, folder or path reads them in the names of files or folders."
    )


def mean_bytes(pictures: Path, reading: ReadingOptions) -> float:
    """Return the mean size of a folder's picture files, in bytes."""
    found = list(find_sources([pictures], reading))
    return sum(source.num_bytes for source in found) / max(1, sum(getattr(one, "num_pictures", 1) for one in found))
