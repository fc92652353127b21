"""The model of a text-to-image run, and its processor."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from hub_tools.checks import check_choice, check_known, check_model_sizes
from hub_tools.foreign.downloads import folder_of
from hub_tools.run_files import PROCESSOR_FILES
from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.tasks.setting_list import Setting, settings_in

UPDATE = "All settings: dalle-collab run settings. A newer package may know it: pip install -U dalle-collab"


def initial_model(run: TrainingRun) -> DalleCollabForConditionalGeneration:
    """Return the model with initial parameters drawn from the run's seed, equal on all peers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(run.run_id, run.seed) % 2**63)
        return DalleCollabForConditionalGeneration(model_configuration(run))


def read_processor(place: str, revision: str | None = None) -> DalleCollabProcessor:
    """Read the run's tokenizer and processor from a folder, or from one commit of its repository."""
    folder = folder_of(place, revision=revision, patterns=PROCESSOR_FILES)
    return DalleCollabProcessor.from_pretrained(folder, trust_remote_code=False)


def model_configuration(run: TrainingRun) -> DalleCollabConfig:
    """Return the model's sizes; raises ValueError if they are invalid, or if this package does not know one."""
    return checked_configuration(run.model_config)


def checked_configuration(settings: Mapping[str, Any]) -> DalleCollabConfig:
    """Return a configuration from its arguments; transformers' own classes silently accept unknown ones.

    Raises:
        ValueError: a setting is unknown, or sizes do not fit together.
    """
    if (model_type := settings.get("model_type", DalleCollabConfig.model_type)) != DalleCollabConfig.model_type:
        raise ValueError(f"The run's model is of type {model_type!r}; expected {DalleCollabConfig.model_type!r}.")
    check_known(settings, known_settings() | {"model_type"}, of="the model", cure=UPDATE)
    check_model_sizes(settings)
    return DalleCollabConfig(**settings)


def known_settings() -> set[str]:
    """Return the names of all settings of the model."""
    return {item.name for item in dataclasses.fields(DalleCollabConfig)} & set(vars(DalleCollabConfig()))


def listed_settings(model_type: str | None = None) -> list[Setting]:
    """Return the settings of the model; ValueError for another type than ours."""
    check_choice("model_type", model_type, (None, DalleCollabConfig.model_type))
    return settings_in(DalleCollabConfig, "Model")
