"""Evaluations of checkpoints as the Hub's evaluation results: a YAML file in `.eval_results`.

The Hub shows them on the leaderboard of the dataset once its owner has made it a benchmark, with an `eval.yaml` whose
tasks are named like the figures here. Until then the file is there to be read.
"""

import datetime
import re
from collections.abc import Sequence

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.metrics.evaluation.checkpoint_figures import CheckpointFigure, newest_figures
from pipelines.features.publishing.metrics.evaluation.model_index import address_of, rounded


def result_entries(repository: str, run: TrainingRun, figures: Sequence[CheckpointFigure]) -> list[EvalResultEntry]:
    """Return one entry for each figure of the newest evaluated checkpoint."""
    return [
        EvalResultEntry(
            dataset_id=run.dataset_repository,
            dataset_revision=run.dataset_revision,
            task_id=task_id(figure.name),
            value=rounded(figure.value),
            date=datetime.datetime.fromtimestamp(figure.time, datetime.UTC).isoformat(timespec="seconds"),
            source_url=address_of(repository, figure.commit),
            source_name=figure.command,
            notes=_notes(figure),
        )
        for figure in newest_figures(figures)
    ]


def results_yaml(repository: str, run: TrainingRun, figures: Sequence[CheckpointFigure]) -> str:
    """Return the text of the file; empty without figures."""
    entries = eval_result_entries_to_yaml(result_entries(repository, run, figures))
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True) if entries else ""


def task_id(name: str) -> str:
    """Return a figure's name as the id of a benchmark's task: `fid@clip` is `fid_clip`."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII)


def _notes(figure: CheckpointFigure) -> str:
    interval = f"95 % interval {figure.interval}, " if figure.interval else ""
    better = f"; {figure.better} is better" if figure.direction else ""
    return f"epoch {figure.epoch}, {interval}on {figure.basis}{better}"
