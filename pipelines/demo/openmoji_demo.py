"""`make demo-openmoji`: the same pipeline on designers' pictures, with a codec and a CLIP trained for them."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.demo.demo_plan import DemoPlan
from pipelines.demo.stages import Stages
from pipelines.demo.summary import DemoSummary, mean_picture_bytes, summarise_demo, write_summary
from pipelines.demo.whole_line import run_whole_line

NUM_CAPTIONS_OF_EACH_KIND = 8

RUN_SETTINGS: dict[str, Any] = dict(
    hidden_size=192,
    num_hidden_layers=8,
    num_attention_heads=6,
    head_dim=32,
    attention_pattern=["row", "column"],
    text_sequence_length=24,
    recompute="none",
    target_batch_size=128,
    num_epochs=400,
    num_warmup_epochs=20,
    peak_learning_rate=0.01,
    weight_decay=0.01,
    matchmaking_seconds=2.0,
    averaging_timeout_seconds=60.0,
    progress_expiration_seconds=30.0,
    checkpoint_interval_epochs=100,
)
"""Everything that makes this run smaller than the paper's."""


def run_openmoji_demo(output: Path, console: Console, *, source: Path | None = None) -> DemoSummary:
    """Run the demo into an empty folder, from a given set or one it fetches itself; return its figures.

    The grid shows captions that were trained on first, then captions of held-out pictures.
    """
    work = output / "work"
    plan = DemoPlan(
        name="openmoji",
        output=output,
        codec_folder=work / "codec",
        clip_folder=work / "clip",
        run_settings=RUN_SETTINGS,
        opens_spaces=True,
        vocabulary_size=2048,
        num_candidates=32,
        top_k=256,
        num_captions_in_grid=2 * NUM_CAPTIONS_OF_EACH_KIND,
    )

    def make_pictures(stages: Stages, folder: Path) -> None:
        fetched = source or work / "source"
        if source is None:
            stages.run("dalle-collab", "demo", "openmoji-fetch", "--output", str(fetched), log_name="pictures")
        stages.run(
            "dalle-collab", "demo", "openmoji-tars", "--source", str(fetched), "--output", str(folder),
            log_name="pictures",
        )  # fmt: skip
        train = str(folder / "train")
        with stages.stage("codec_training", "Training a codec for these pictures"):
            stages.run(
                "dalle-collab", "codec", "train", train, "--output", str(plan.codec_folder), "--steps", "1500",
                log_name="codec",
            )  # fmt: skip
        with stages.stage("clip_training", "Training a CLIP for these pictures"):
            stages.run(
                "dalle-collab", "clip", "train", train, "--output", str(plan.clip_folder), "--vocab-size", "2048",
                "--codec", str(plan.codec_folder), log_name="clip",
            )  # fmt: skip

    pictures = plan.work / "pictures"
    result = run_whole_line(plan, make_pictures, lambda: _captions(pictures), console)
    summary = summarise_demo(result, picture_bytes=mean_picture_bytes((pictures / "train").glob("*.tar")))
    number = NUM_CAPTIONS_OF_EACH_KIND
    write_summary(
        output,
        "OpenMoji drawn by a model that two peers trained together",
        summary,
        result.history,
        grid_title=f"First {number} captions that were trained on, then {number} of emoji held out, best first",
    )
    return summary


def _captions(pictures: Path) -> list[str]:
    trained = _distinct_captions(pictures / "train")
    held_out = _distinct_captions(pictures / "held_out")
    return [next(source) for source in (trained, held_out) for _ in range(NUM_CAPTIONS_OF_EACH_KIND)]


def _distinct_captions(folder: Path) -> Iterator[str]:
    seen = set()
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".txt") and (text := tar.extractfile(member)) is not None:
                    caption = text.read().decode()
                    if caption not in seen:
                        seen.add(caption)
                        yield caption
