"""Evaluations in the form that the Hub reads from a model card's front matter and shows beside the model."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index

from pipelines.training.metrics.history import perplexity
from pipelines.training.run.training_run import TrainingRun


def model_index(repository: str, run: TrainingRun, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines of YAML for the newest evaluation, each with its end; empty without one."""
    if not evaluations:
        return ""
    newest = evaluations[-1]
    figures = {"loss": ("held-out loss (nats)", newest["loss"])}
    if run.unit == "tokens":
        figures["perplexity"] = ("held-out perplexity", perplexity(newest["loss"]))
    args = {name: newest[name] for name in ("epoch", "num_records") if newest.get(name) is not None}
    results = [
        EvalResult(
            task_type=run.task,
            dataset_type=run.dataset_repository,
            dataset_name=run.dataset_repository,
            dataset_revision=run.dataset_revision,
            dataset_split="held out",
            metric_type=kind,
            metric_name=name,
            metric_value=round(value, 4),
            metric_args=args,
        )
        for kind, (name, value) in figures.items()
    ]
    return yaml.safe_dump({"model-index": eval_results_to_model_index(repository, results)}, sort_keys=False)
