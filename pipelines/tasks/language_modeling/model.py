"""The model of a language run: any that transformers builds from a configuration, or loads from a checkpoint."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from hub_tools.checks import check_known, check_model_sizes
from hub_tools.foreign.downloads import folder_of
from hub_tools.hub_client import is_outage
from hub_tools.one_line_errors import explain_error
from hub_tools.run_files import CONFIG_FILE, MODEL_FILES
from pipelines.core.run.training_run import TrainingRun, stable_seed
from pipelines.features.memory_estimate.hub_config import fetch_model
from pipelines.tasks.language_modeling.settings import FILL_MASK, LanguageSettings
from pipelines.tasks.setting_list import Setting, settings_in

MODELS = {
    True: (AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING),
    False: (AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING),
}
"""By whether the model fills masks: the class that creates it, and its known configurations."""

NOT_SIZES = ("architectures", "auto_map", "dtype", "transformers_version")
"""Keys of a `config.json` other than the model's sizes; a run's parameters are float32."""

SHIFTED_POSITIONS = ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
"""Models that count positions from after `pad_token_id`, so that they have fewer than declared."""


def model_configuration(model_config: Mapping[str, Any], task: str) -> PretrainedConfig:
    """Return the configuration of a run's model.

    Raises:
        ValueError: transformers has no such model for the task, or a setting is unknown or of the wrong type.
    """
    settings = dict(model_config)
    if "auto_map" in settings:
        raise ValueError(
            "The model needs custom code (auto_map), which peers do not run. Choose a model_type of transformers."
        )
    model_type = settings.pop("model_type", None)
    kind = _configuration_class(model_type)
    cure = f"All of them: dalle-collab run settings --task {task} --model-type {model_type}"
    check_known(settings, _known_settings(kind), of=f"a model of type {model_type}", cure=cure)
    check_model_sizes(settings)
    try:
        config = kind(**settings)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(f"The settings of the model are invalid: {' '.join(str(error).split())}") from error
    _check_kind(config, task)
    return config


def _known_settings(kind: type[PretrainedConfig]) -> set[str]:
    """Return the names that a configuration takes, with those that transformers maps to them."""
    return {item.name for item in dataclasses.fields(kind)} | set(kind.attribute_map)


def listed_settings(model_type: str | None) -> list[Setting]:
    """Return the settings of a language run, and of models of this type; ValueError if transformers has none."""
    found = settings_in(LanguageSettings, "Language")
    if model_type is not None:
        kind = _configuration_class(model_type)
        defaults, names = kind(), sorted(_known_settings(kind) - set(NOT_SIZES))
        found += [
            Setting(name=name, default=getattr(defaults, name, None), meaning="", group=model_type) for name in names
        ]
    return found


def _configuration_class(model_type: object) -> type[PretrainedConfig]:
    try:
        kind = type(AutoConfig.for_model(model_type))
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"model_type is {str(model_type)[:60]!r}, which transformers does not know; expected one such as albert, "
            "bert, gpt2, llama or roberta. Models with custom code cannot be trained."
        ) from error
    return kind


def _check_kind(config: PretrainedConfig, task: str) -> None:
    """Raise ValueError unless transformers has a model of this configuration for the task, and it cannot cheat."""
    _, known = MODELS[task == FILL_MASK]
    if config.is_encoder_decoder:
        raise ValueError(
            f"A model of type {config.model_type} has an encoder and a decoder; {task} trains single-stack models."
        )
    if type(config) not in known:
        raise ValueError(f"transformers has no {task} model of type {config.model_type}. Choose another model or task.")
    if task != FILL_MASK and not getattr(config, "is_decoder", True):
        raise ValueError(
            f"A model of type {config.model_type} sees the tokens that it should predict unless is_decoder is true. "
            "Set it in the model's settings, or choose the task fill-mask."
        )


def initial_model(run: TrainingRun, settings: LanguageSettings) -> PreTrainedModel:
    """Return the model with the run's initial parameters, float32, bit for bit equal on all peers.

    They are drawn from the run's seed, or loaded from the checkpoint that the run starts from.

    Raises:
        ValueError: the configuration is invalid, or the checkpoint does not fit it.
    """
    config = model_configuration(run.model_config, run.task)
    kind, _ = MODELS[run.task == FILL_MASK]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(run.run_id, run.seed) % 2**63)
        if settings.start_from:
            return _from_checkpoint(kind, config, settings, run.task)
        try:
            return kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
        except (RuntimeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"The sizes of the model do not fit together: {explain_error(error)}") from error


def num_parameters(config: PretrainedConfig, task: str) -> int:
    """Return how many a model of this configuration has; none is allocated."""
    kind, _ = MODELS[task == FILL_MASK]
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in kind.from_config(config, trust_remote_code=False).parameters())


def _from_checkpoint(kind: type, config: PretrainedConfig, settings: LanguageSettings, task: str) -> PreTrainedModel:
    place = f"{settings.start_from} at {settings.start_from_revision[:12]}"
    try:
        model, found = kind.from_pretrained(
            fetch_model(
                settings.start_from,
                revision=settings.start_from_revision,
                patterns=MODEL_FILES,
                num_parameters=num_parameters(config, task),
            ),
            trust_remote_code=False,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        if is_outage(error):
            raise
        raise ValueError(f"The run cannot start from {place}: {explain_error(error)}") from error
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"The run cannot start from {place}: it has no parameters for {', '.join(missing[:3])}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}. Is it a checkpoint of another task?"
        )
    model.config._name_or_path = ""
    return model


def checkpoint_settings(repository: str, revision: str) -> dict[str, object]:
    """Return the settings of a checkpoint's model, as `model_config` of a run that starts from it.

    Raises:
        ValueError: there is no such model, or it needs custom code.
    """
    try:
        config = AutoConfig.from_pretrained(
            folder_of(repository, revision=revision, patterns=[CONFIG_FILE]), trust_remote_code=False
        )
    except (KeyError, OSError, ValueError) as error:
        if is_outage(error):
            raise
        raise ValueError(
            f"The model {repository} at {revision[:12]} cannot be used: {explain_error(error)} Models with "
            "custom code cannot be trained."
        ) from error
    known = {item.name for item in dataclasses.fields(type(config))} - set(NOT_SIZES)
    return {"model_type": config.model_type} | {
        name: value for name, value in config.to_diff_dict().items() if name in known
    }


def num_positions(config: PretrainedConfig) -> int | None:
    """Return the length of the longest sequence that the model takes; None: it has no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in SHIFTED_POSITIONS:
        return positions - config.pad_token_id - 1
    return positions
