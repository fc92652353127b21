"""A run as it is to be created, and what its settings mean for its dataset and its volunteers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from pipelines.command_line.explaining.run_meaning import UNREADABLE, DatasetSample, explain_run
from pipelines.command_line.explaining.slow_links import settings_for_links
from pipelines.command_line.explaining.small_runs import fit_small_run
from pipelines.core.optimizers.choice import parameter_groups
from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.publishable_task import RunRequest
from pipelines.tasks.choice import compose_run, open_task
from pipelines.tasks.presets import preset_settings
from pipelines.tasks.setting_list import settings_without_effect

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
    return run, processor, told


def _compose(request: RunRequest, settings: Mapping[str, Any]) -> tuple[TrainingRun, Any]:
    others = {name: value for name, value in settings.items() if name != "run_id"}
    return compose_run(dataclasses.replace(request, settings=others))
