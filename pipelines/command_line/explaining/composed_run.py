"""A run as it is to be created, and what its settings mean for its dataset and its volunteers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub import HfFileSystem

from pipelines.command_line.explaining.run_meaning import UNREADABLE, DatasetSample, explain_run
from pipelines.command_line.explaining.slow_links import settings_for_links
from pipelines.command_line.explaining.small_runs import fit_small_run
from pipelines.core.optimizers.choice import parameter_groups
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.publishable_task import RunRequest
from pipelines.tasks.choice import compose_run, open_task
from pipelines.tasks.presets import preset_settings
from pipelines.tasks.setting_list import settings_without_effect
from pipelines.tasks.text_to_image.model import checked_configuration
from pipelines.tasks.text_to_image.reel_captions import held_out_reel_captions
from pipelines.tools.doctor.run_examination import dataset_files

OVER_THE_HUB = dict(synchronisation="sparse", local_steps=30, aggregation_rule="mean", outer_momentum=0.0)
"""What a run whose wire is the Hub has unless it is told otherwise."""


def compose_explained(
    request: RunRequest,
    preset: str | None,
    repository: str,
    *,
    hours: float,
    hardware: str | None,
    links: float | None,
) -> tuple[TrainingRun, Any, list[str]]:
    """Return a run, its tokenizer or processor, and sentences about it; what `request` sets goes before all else.

    `hours` and `hardware` are for the preset `small`. `links`: Mbit/s of the volunteers' links, which may set local
    steps; None leaves them.

    Raises:
        ValueError: the settings, `hours`, `hardware` or `links` are invalid, or a small run's dataset is unreadable.
    """
    chosen, sample = dict(request.settings), None
    if chosen.get("wire") == "hub":
        chosen = OVER_THE_HUB | {"bucket": f"{repository}.rounds"} | chosen
    told: list[str] = []
    run, processor = _compose(request, preset_settings(preset, request.task) | chosen)
    if preset == "small":
        try:
            sample = DatasetSample.read(run, processor)
        except UNREADABLE as error:
            raise ValueError(f"{request.dataset} cannot be read, and --preset small needs its size: {error}") from error
        fitted, told = fit_small_run(run, sample, chosen, hours, hardware)
        run, processor = _compose(request, fitted)
    task = open_task(run, repository)
    if links is not None:
        proposed = settings_for_links(run, task.num_parameters(), links)
        run = run.replace(**{name: value for name, value in proposed.items() if name not in chosen})
    if run.stepping_optimizer == "muon" and not run.task_settings.get("start_from"):
        with torch.device("meta"):  # nothing is allocated
            parameter_groups(run, open_task(run, repository).new_model())
    told += [*settings_without_effect(run, chosen), *explain_run(run, processor, task.num_parameters(), sample)]
    if run.task == "text-to-image" and "reel_prompts" not in chosen:
        run = run.replace(reel_prompts=_reel_captions(run))
        told += reel_sentences(run)
    return run, processor, told


def reel_sentences(run: TrainingRun) -> list[str]:
    """Return what the auxiliary peer will draw, which is published."""
    if not run.reel_prompts:
        return []
    drawn = "; ".join(run.reel_prompts)
    return [
        f"The auxiliary peer draws these held-out captions every {run.reel_interval_epochs:,} epochs, for the pages: "
        f"{drawn}. Others, or none ([]): --set reel_prompts='[\"...\"]'"
    ]


def _reel_captions(run: TrainingRun) -> list[str]:
    """Choose them; a dataset that cannot be read, which is said elsewhere, has none."""
    try:
        num_codes = checked_configuration(run.model_config).num_image_codes
        return held_out_reel_captions(
            dataset_files(run), HfFileSystem().open, num_codes=num_codes, share=run.held_out_share
        )
    except UNREADABLE:
        return []


def _compose(request: RunRequest, settings: Mapping[str, object]) -> tuple[TrainingRun, Any]:
    others = {name: value for name, value in settings.items() if name != "run_id"}
    return compose_run(dataclasses.replace(request, settings=others))
