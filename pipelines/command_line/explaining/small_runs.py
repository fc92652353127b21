"""Settings that fit a small text-to-image run to its dataset, hardware and hours; pure arithmetic."""

import math
import re
from collections.abc import Mapping
from typing import Any

from hub_tools.counted import duration
from modeling_dalle_collab import DalleCollabConfig
from pipelines.command_line.explaining.run_meaning import DatasetSample, fitting_length
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.memory_estimate.models.dalle_collab_compute import training_flops
from pipelines.features.torch_devices import num_cores
from pipelines.tasks.presets import DEMO
from pipelines.tasks.text_to_image.model import known_settings
from pipelines.tools.doctor.organiser_checks import WIDTH_EXPONENTS

SPEEDS = {"core": 2.5e10, "t4": 1.3e13, "l4": 2.4e13, "rtx4090": 3.3e13, "a100": 6.2e13, "h100": 2e14}
"""FLOP/s while training. A core's and the H100's were measured (docs/measurements.md); the other cards are given the
H100's share of their best, a fifth."""

SIZES = ((128, 6), (192, 6), (256, 8), (384, 12), (512, 16), (768, 24), (1024, 64))
"""Hidden sizes and numbers of layers; the last is the paper's model."""

LEAST_PASSES, MOST_PASSES = 10, 60
"""A model so large that each record is seen less often learns less in the same time; more passes teach it by heart."""

LEAST_SAMPLES = 30_000
"""Some hundred optimizer steps, below which a large model learns less than a small one, however few the records are."""

SECONDS_OF_AN_EPOCH = 8.0
MOST_GROWTH = 8
"""Of the demo's batch, where that would make epochs shorter than these seconds."""

SECONDS_OF_CALM_EPOCHS = 60.0
"""Above which a run keeps the usual time-outs."""

NUM_HELD_OUT = 100
WARMUP_SHARE = 0.05
EXPECTATIONS = (
    (20_000, "colours that fit some words, and blurred shapes"),
    (60_000, "outlines of what occurs often, and little that is fine"),
    (1_000_000, "subjects that one recognises, where there are dozens of pictures of each"),
)
"""By the number of samples; docs/own_pictures.md has grids."""


def speed_of(hardware: str) -> float:
    """Return the FLOP/s of machines, such as `2 cores`, `t4` or `3 t4`.

    Raises:
        ValueError: it is something else.
    """
    found = re.fullmatch(r"(?:(\d{1,4})\s*x?\s*)?([a-z]\w*)", hardware.strip().lower())
    name = "core" if found and found[2] == "cores" else found[2] if found else ""
    if found is None or name not in SPEEDS or int(found[1] or 1) == 0:
        raise ValueError(f"--hardware is {hardware!r}; expected such as '4 cores' or '2 t4', of: {', '.join(SPEEDS)}.")
    return int(found[1] or 1) * SPEEDS[name]


def settings_of_small_run(
    demo: Mapping[str, Any], fixed: Mapping[str, Any], *, num_records: int, hours: float, flops: float
) -> dict[str, Any]:
    """Return a small run's settings: the demo's, with a model and a schedule for so many records, hours and FLOP/s.

    `fixed` are those of the model's settings that are given: the number of codes, of text tokens and what was chosen.
    The model is the largest that still makes enough steps, and ten passes over the records, in these hours. The peak
    rate is the demo's, and falls with the width as `run check` expects.

    Raises:
        ValueError: `hours` is no positive number, or there are no records.
    """
    if not (math.isfinite(hours) and hours > 0):
        raise ValueError(f"--hours is {hours}; expected how long the run may take, such as 8.")
    if num_records < 1:
        raise ValueError("The dataset has no records: prepare it again (dalle-collab data prepare).")
    work = flops * hours * 3600
    largest_first: tuple[tuple[int, int], ...] = SIZES[::-1]
    if "hidden_size" in fixed:
        width = int(fixed["hidden_size"])
        largest_first = ((width, min(SIZES, key=lambda size: abs(size[0] - width))[1]),)
    for hidden, layers in largest_first:
        model = _model(hidden, layers)
        sizes = {**model, **fixed}
        of_a_sample = training_flops(DalleCollabConfig(**sizes), "none")
        if work / of_a_sample >= max(LEAST_SAMPLES, LEAST_PASSES * num_records):
            break
    samples = min(work / of_a_sample, MOST_PASSES * num_records)
    per_second = flops / of_a_sample
    local_steps, narrower = int(demo["local_steps"]), demo["hidden_size"] / hidden
    in_an_epoch = local_steps * demo["target_batch_size"]
    growth = min(MOST_GROWTH, max(1, round(SECONDS_OF_AN_EPOCH * per_second / in_an_epoch)))
    batch = min(growth * int(demo["target_batch_size"]), max(1, num_records // 2))
    num_epochs = max(10, math.ceil(samples / (local_steps * batch)))
    chosen = dict(
        demo,
        **{name: sizes[name] for name in model},
        inner_batch_size=min(growth * int(demo["inner_batch_size"]), max(1, batch // 2)),
        target_batch_size=batch,
        num_epochs=num_epochs,
        num_warmup_epochs=max(1, round(WARMUP_SHARE * num_epochs)),
        peak_learning_rate=float(f"{demo['peak_learning_rate'] * narrower ** WIDTH_EXPONENTS[1]:.2g}"),
        held_out_share=round(min(0.2, max(0.01, NUM_HELD_OUT / num_records)), 4),
        checkpoint_interval_epochs=max(1, num_epochs // 10),
        evaluation_interval_epochs=max(1, num_epochs // 10),
        reel_interval_epochs=max(1, num_epochs // 10),
    )
    if local_steps * batch / per_second >= SECONDS_OF_CALM_EPOCHS:
        for name in ("matchmaking_seconds", "averaging_timeout_seconds", "progress_expiration_seconds"):
            del chosen[name]
    return chosen


def fit_small_run(
    run: TrainingRun, dataset: DatasetSample, chosen: Mapping[str, object], hours: float, hardware: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a small run on a dataset, those that were chosen among them, and what to expect of it.

    `hardware` as for `speed_of`; None: this machine's processor.

    Raises:
        ValueError: hours or hardware are none, or the dataset has no records.
    """
    hardware = hardware or f"{num_cores()} cores"
    flops, given = speed_of(hardware), known_settings() - {"text_vocab_size", "image_grid_size", "codebook_size"}
    fixed = {name: run.model_config[name] for name in ("text_vocab_size", "image_grid_size", "codebook_size")}
    fixed["text_sequence_length"] = fitting_length(dataset.caption_lengths)
    fixed |= {name: value for name, value in chosen.items() if name in given}
    fitted = settings_of_small_run(DEMO, fixed, num_records=dataset.num_records, hours=hours, flops=flops)
    values = fitted | dict(text_sequence_length=fixed["text_sequence_length"]) | dict(chosen)
    samples = values["num_epochs"] * values["local_steps"] * values["target_batch_size"]
    passes = samples / dataset.num_records
    like = next((words for most, words in EXPECTATIONS if samples < most), EXPECTATIONS[-1][1])
    helps = "more pictures" if passes > MOST_PASSES / 2 else "more hours, more volunteers or a GPU"
    sizes = DalleCollabConfig(**{name: values[name] for name in values if name in known_settings()} | fixed)
    needed = samples * training_flops(sizes, "none") / flops / 3600
    return values, [
        f"A model {values['hidden_size']} wide with {values['num_hidden_layers']} layers, {duration(3600 * needed)} on "
        f"{hardware} by estimate (`dalle-collab run check` knows more once peers train).",
        f"Expect {like}. What would help most: {helps}.",
        f"About {values['held_out_share'] * dataset.num_records:.0f} of {dataset.num_records:,} records are held out.",
    ]


def _model(hidden: int, layers: int) -> dict[str, Any]:
    head_dim = 32 if hidden <= 256 else 64
    return dict(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // head_dim,
        head_dim=head_dim,
        attention_pattern=["row", "column", "row", "row"],
        feed_forward_multiplier=4,
    )
