"""`make demo`: the whole pipeline on captioned scenes, scored by the judge."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from pipelines.tasks.presets import DEMO
from pipelines.tools.demo.demo_plan import DemoPlan
from pipelines.tools.demo.running.progress_lines import ProgressLines
from pipelines.tools.demo.scenes.caption_judge import held_out_scene_captions, judge_caption, score_drawings
from pipelines.tools.demo.shipped_models import PRETRAINED_CLIP, PRETRAINED_CODEC
from pipelines.tools.demo.stages import Stages
from pipelines.tools.demo.summary import DemoSummary, mean_picture_bytes, summarise_demo, write_summary
from pipelines.tools.demo.whole_line import run_whole_line

NUM_SCENES, NUM_PAIRS = 200, 100
NUM_PICTURES = 16_000
NUM_REEL_PROMPTS = 6

RUN_SETTINGS: dict[str, Any] = dict(DEMO)

LONG_SETTINGS: dict[str, object] = RUN_SETTINGS | dict(num_epochs=75)
"""Nearly twice as many samples, as many as the demo had without local steps."""

SHORT_SETTINGS: dict[str, object] = RUN_SETTINGS | dict(
    local_steps=2, num_epochs=12, num_warmup_epochs=4, checkpoint_interval_epochs=4, reel_interval_epochs=4
)
SHORT_NUM_PICTURES = 1_000
"""What the short version trains on, for a look at the whole within minutes: its pictures are poor."""


def run_scenes_demo(
    output: Path, console: Console, *, num_pictures: int | None = None, is_short: bool = False, is_long: bool = False
) -> DemoSummary:
    """Run the demo, or the rest of an interrupted one; return its figures, which are also in `summary.json`.

    Raises:
        StageError: a command failed; the next call goes on with what is finished.
        ValueError: the folder cannot be used for this; the message says why.
    """
    if is_short and is_long:
        raise ValueError("--short and --long were both given. Choose one of them.")
    num_pictures = num_pictures or (SHORT_NUM_PICTURES if is_short else NUM_PICTURES)
    settings = SHORT_SETTINGS if is_short else LONG_SETTINGS if is_long else RUN_SETTINGS
    captions = held_out_scene_captions(*((20, 10) if is_short else (NUM_SCENES, NUM_PAIRS)))
    plan = DemoPlan(
        name="scenes",
        output=output,
        codec_folder=PRETRAINED_CODEC,
        clip_folder=PRETRAINED_CLIP,
        run_settings=settings | dict(reel_prompts=captions[:NUM_REEL_PROMPTS]),
        micro_batch_size=RUN_SETTINGS["inner_batch_size"],
        num_candidates=4 if is_short else 16,
        source=dict(num_pictures=num_pictures),
        opens_spaces=True,
    )

    def make_pictures(stages: Stages, folder: Path) -> None:
        stages.run(
            "dalle-collab", "demo", "scenes", "--output", str(folder), "--num-pictures", str(num_pictures),
            log_name="pictures",
        )  # fmt: skip

    result = run_whole_line(plan, make_pictures, lambda: captions, console)
    with ProgressLines(console).doing("Judging the pictures"):
        summary = summarise_demo(
            result,
            picture_bytes=mean_picture_bytes((plan.work / "pictures").glob("*.tar")),
            scores=score_drawings(captions, _read(result.best_pictures), _read(result.unranked_pictures)),
        )
        write_summary(
            output,
            "Scenes drawn by a model that two peers trained together",
            summary,
            result,
            grid_title="Pictures for captions that were never trained on, best first",
            faults=[_faults(caption, best) for caption, (best, *_) in result.grid],
        )
    return summary


def _faults(caption: str, file: str) -> list[str]:
    """Return the attributes that the judge sees otherwise than the caption says."""
    return [name for name, is_right in (judge_caption(caption, *_read([file])) or {}).items() if not is_right]


def _read(files: list[str]) -> list[np.ndarray]:
    return [np.asarray(Image.open(file).convert("RGB")) for file in files]
