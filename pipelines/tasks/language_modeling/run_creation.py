"""Putting a new language run together from its dataset, tokenizer and settings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from huggingface_hub import HfApi
from transformers import PreTrainedTokenizerBase

from pipelines.core.run.training_run import TrainingRun
from pipelines.core.run.versions import package_version
from pipelines.features.publishing.publishable_task import RunRequest
from pipelines.tasks.language_modeling.documents import check_dataset
from pipelines.tasks.language_modeling.model import checkpoint_settings, model_configuration
from pipelines.tasks.language_modeling.settings import LANGUAGE_TASKS, LanguageSettings
from pipelines.tasks.language_modeling.tokenizer import check_tokenizer_fits, read_tokenizer
from pipelines.tasks.required_versions import required_versions

SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def compose(request: RunRequest) -> tuple[TrainingRun, PreTrainedTokenizerBase]:
    """Return a new run and its tokenizer; see `tasks.choice`."""
    for option, value in (("--codec", request.codec), ("--clip", request.clip)):
        if value is not None:
            raise ValueError(f"{option} is about pictures and has no effect on a {request.task} run. Leave it out.")
    tokenizer = read_tokenizer(request.tokenizer)
    run = compose_language_run(
        run_id=request.run_id,
        task=request.task,
        dataset_repository=request.dataset,
        tokenizer=tokenizer,
        settings=request.settings,
    )
    return run, tokenizer


def compose_language_run(
    *,
    run_id: str,
    task: str,
    dataset_repository: str,
    tokenizer: PreTrainedTokenizerBase,
    settings: Mapping[str, object],
) -> TrainingRun:
    """Return a run whose dataset, tokenizer and model match.

    Keys of `settings` are fields of `TrainingRun`, of `LanguageSettings`, or settings of the model: `model_type` and
    what transformers' configuration of that type has. With `start_from` the model's settings are those of the
    checkpoint, and its newest commit is used unless `start_from_revision` names one. Size and special tokens of the
    vocabulary are the tokenizer's. An epoch gathers as many sequences as any run gathers samples, unless
    `target_batch_size` says how many predicted tokens it should be.

    Raises:
        ValueError: a setting is unknown, or parts do not match.
    """
    if task not in LANGUAGE_TASKS:
        raise ValueError(f"task is {task!r}; expected {' or '.join(LANGUAGE_TASKS)}.")
    run_settings, rest = _split(settings, TrainingRun)
    task_settings, model_settings = _split(rest, LanguageSettings)
    if start := task_settings.get("start_from"):
        task_settings.setdefault("start_from_revision", HfApi().model_info(start).sha)
    language = LanguageSettings.from_mapping(task_settings)
    if start:
        model_settings = checkpoint_settings(start, language.start_from_revision) | model_settings
    elif "model_type" not in model_settings:
        raise ValueError(
            "The run has no model: --set model_type=TYPE (albert, gpt2, ...), or --set start_from=ORG/NAME"
        )
    else:
        model_settings = _vocabulary(tokenizer) | model_settings
    config = model_configuration(model_settings, task)
    values = dict(
        {"target_batch_size": round(TrainingRun.target_batch_size * language.sample_weight(task))} | run_settings,
        run_id=run_id,
        task=task,
        task_settings=task_settings,
        model_config=model_settings,
        dataset_repository=dataset_repository,
        dataset_revision=HfApi().dataset_info(dataset_repository).sha,
        package_version=package_version(),
        required_versions=settings.get("required_versions", required_versions()),
    )
    run = TrainingRun.from_mapping(values)
    check_tokenizer_fits(tokenizer, config, task, language)
    check_dataset(run, language)
    return run


def _split(settings: Mapping[str, Any], kind: type) -> tuple[dict[str, Any], dict[str, Any]]:
    names = {item.name for item in dataclasses.fields(kind)}
    return (
        {name: value for name, value in settings.items() if name in names},
        {name: value for name, value in settings.items() if name not in names},
    )


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    special = {name: getattr(tokenizer, name) for name in SPECIAL_TOKENS}
    return {"vocab_size": len(tokenizer)} | {name: value for name, value in special.items() if value is not None}
