"""`make demo`: the whole pipeline on captioned scenes, scored by the judge."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from pipelines.demo.demo_plan import DemoPlan
from pipelines.demo.scenes.caption_judge import held_out_scene_captions, score_drawings
from pipelines.demo.shipped_models import PRETRAINED_CLIP, PRETRAINED_CODEC
from pipelines.demo.stages import Stages
from pipelines.demo.summary import DemoSummary, mean_picture_bytes, summarise_demo, write_summary
from pipelines.demo.whole_line import run_whole_line

NUM_SCENES, NUM_PAIRS = 400, 100
NUM_PICTURES = 16_000

RUN_SETTINGS: dict[str, Any] = dict(
    hidden_size=128,
    num_hidden_layers=6,
    num_attention_heads=4,
    head_dim=32,
    attention_pattern=["row", "column"],
    feed_forward_multiplier=2,
    text_sequence_length=16,
    recompute="none",
    target_batch_size=192,
    num_epochs=300,
    num_warmup_epochs=20,
    peak_learning_rate=0.02,
    weight_decay=0.01,
    min_8bit_elements=4096,
    matchmaking_seconds=1.0,
    averaging_timeout_seconds=30.0,
    progress_expiration_seconds=20.0,
    checkpoint_interval_epochs=100,
)
"""Everything that makes this run smaller than the paper's."""


def run_scenes_demo(output: Path, console: Console, *, num_pictures: int = NUM_PICTURES) -> DemoSummary:
    """Run the demo into an empty folder; return its figures, which are also in `summary.json`."""
    plan = DemoPlan(
        name="scenes",
        output=output,
        codec_folder=PRETRAINED_CODEC,
        clip_folder=PRETRAINED_CLIP,
        run_settings=RUN_SETTINGS,
        opens_spaces=True,
    )

    def make_pictures(stages: Stages, folder: Path) -> None:
        stages.run(
            "dalle-collab", "demo", "scenes", "--output", str(folder), "--num-pictures", str(num_pictures),
            log_name="pictures",
        )  # fmt: skip

    captions = held_out_scene_captions(NUM_SCENES, NUM_PAIRS)
    result = run_whole_line(plan, make_pictures, lambda: captions, console)
    summary = summarise_demo(
        result,
        picture_bytes=mean_picture_bytes((plan.work / "pictures").glob("*.tar")),
        scores=score_drawings(captions, _read(result.best_pictures), _read(result.unranked_pictures)),
    )
    write_summary(
        output,
        "Scenes drawn by a model that two peers trained together",
        summary,
        result.history,
        grid_title="Pictures for captions that were never trained on, best first",
    )
    return summary


def _read(files: list[str]) -> list[np.ndarray]:
    return [np.asarray(Image.open(file).convert("RGB")) for file in files]
