"""Sizes from the config.json of a model on the Hub."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hub_tools.checks import LARGEST_SIZE, check_model_sizes
from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import CONFIG_FILE, PROCESSOR_FILES
from pipelines.memory_estimate.estimate import estimate_training_memory
from pipelines.memory_estimate.model_presets import ModelSizes
from pipelines.memory_estimate.models.dalle_collab_sizes import DENSE_MAX_POSITIONS, DalleCollabSizes
from pipelines.memory_estimate.models.transformer_sizes import TransformerSizes
from pipelines.memory_estimate.settings import MemorySettings

KNOWN_MODEL_TYPES = ("albert", "bert", "dalle_collab", "gpt2", "gptj", "llama", "mt5", "roberta", "t5")
SLOW_GELUS = ("gelu_new", "gelu_fast")
MAX_CONFIG_BYTES = 10**6

BYTES_OF_A_PARAMETER, SPARE_BYTES = 32, 2**24
"""What a checkpoint has at most: weights and an optimizer's statistics in float32, and as much again; headers."""


def sizes_from_config(config: Mapping[str, Any]) -> ModelSizes:
    """Return the sizes that a `config.json` describes. Raises ValueError for other kinds of models and bad numbers."""
    sizes = _sizes(config)
    check_model_sizes(config)  # afterwards: of what is read here, the reading says more
    return sizes


def _sizes(config: Mapping[str, Any]) -> ModelSizes:
    model_type = config.get("model_type")
    if model_type not in KNOWN_MODEL_TYPES:
        raise ValueError(
            f"The model is of type {str(model_type)[:40]!r}; the calculator knows {', '.join(KNOWN_MODEL_TYPES)}. "
            "Choose the known model closest in kind and size."
        )
    if model_type == "dalle_collab":
        return _dalle_collab(config)
    if model_type == "albert":
        return _albert(config)
    if model_type in ("bert", "roberta"):
        return _bert(config)
    if model_type == "llama":
        return _llama(config)
    if model_type in ("t5", "mt5"):
        return _t5(config)
    return _gpt(config, str(model_type))


def _dalle_collab(config: Mapping[str, Any]) -> DalleCollabSizes:
    for item in dataclasses.fields(DalleCollabSizes):
        if type(item.default) is int:
            _number(config, item.name, default=item.default)
    pattern = config.get("attention_pattern", DalleCollabSizes.attention_pattern)
    if not isinstance(pattern, (list, tuple)) or not set(pattern) <= set(DENSE_MAX_POSITIONS) or not pattern:
        raise ValueError(f"attention_pattern is {str(pattern)[:80]!r}; expected {', '.join(DENSE_MAX_POSITIONS)}.")
    return DalleCollabSizes.from_mapping(config)


def _number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if value is not None:
            if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
                raise ValueError(f"{name} is {str(value)[:40]!r} in config.json; expected 1 to {LARGEST_SIZE}.")
            return value
    if default is None:
        raise ValueError(f"config.json has no {names[0]}. Is it the configuration of a whole model?")
    return default


def _has_dropout(config: Mapping[str, Any], name: str, default: float) -> bool:
    return bool(config.get(name, default))


def _bert(config: Mapping[str, Any]) -> TransformerSizes:
    hidden = _number(config, "hidden_size", default=768)
    heads = _number(config, "num_attention_heads", default=12)
    return TransformerSizes(
        family="bert",
        vocab_size=_number(config, "vocab_size", default=30522),
        hidden_size=hidden,
        num_layers=_number(config, "num_hidden_layers", default=12),
        num_heads=heads,
        head_size=max(1, hidden // heads),
        wide_size=_number(config, "intermediate_size", default=3072),
        max_sequence_length=_number(config, "max_position_embeddings", default=512),
        num_token_types=_number(config, "type_vocab_size", default=2),
        has_slow_gelu=config.get("hidden_act", "gelu") in SLOW_GELUS,
        has_dropout=_has_dropout(config, "hidden_dropout_prob", 0.1),
        has_tied_table=bool(config.get("tie_word_embeddings", True)),
    )


def _albert(config: Mapping[str, Any]) -> TransformerSizes:
    sizes = _bert(
        {"vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384} | config
    )
    return dataclasses.replace(
        sizes,
        family="albert",
        embedding_size=_number(config, "embedding_size", default=128),
        num_shared_groups=_number(config, "num_hidden_groups", default=1),
        has_slow_gelu=config.get("hidden_act", "gelu_new") in SLOW_GELUS,
        has_dropout=_has_dropout(config, "hidden_dropout_prob", 0.0),
    )


def _llama(config: Mapping[str, Any]) -> TransformerSizes:
    hidden = _number(config, "hidden_size")
    heads = _number(config, "num_attention_heads")
    return TransformerSizes(
        family="llama",
        vocab_size=_number(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=_number(config, "num_hidden_layers"),
        num_heads=heads,
        num_key_value_heads=_number(config, "num_key_value_heads", default=heads),
        head_size=_number(config, "head_dim", default=max(1, hidden // heads)),
        wide_size=_number(config, "intermediate_size"),
        max_sequence_length=_number(config, "max_position_embeddings", default=2048),
        has_slow_gelu=False,
        has_dropout=False,
        has_tied_table=bool(config.get("tie_word_embeddings", False)),
    )


def _gpt(config: Mapping[str, Any], family: str) -> TransformerSizes:
    hidden = _number(config, "n_embd", "hidden_size")
    heads = _number(config, "n_head", "num_attention_heads")
    return TransformerSizes(
        family=family,
        vocab_size=_number(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=_number(config, "n_layer", "num_hidden_layers"),
        num_heads=heads,
        head_size=max(1, hidden // heads),
        wide_size=_number(config, "n_inner", default=4 * hidden),
        max_sequence_length=_number(config, "n_positions", "n_ctx", default=1024),
        has_slow_gelu=config.get("activation_function", "gelu_new") in SLOW_GELUS,
        has_dropout=_has_dropout(config, "resid_pdrop", 0.1 if family == "gpt2" else 0.0),
        has_tied_table=bool(config.get("tie_word_embeddings", family == "gpt2")),
    )


def _t5(config: Mapping[str, Any]) -> TransformerSizes:
    layers = _number(config, "num_layers")
    activation = str(config.get("feed_forward_proj", "relu"))
    return TransformerSizes(
        family="t5",
        vocab_size=_number(config, "vocab_size"),
        hidden_size=_number(config, "d_model"),
        num_layers=layers,
        num_decoder_layers=_number(config, "num_decoder_layers", default=layers),
        num_heads=_number(config, "num_heads"),
        head_size=_number(config, "d_kv"),
        wide_size=_number(config, "d_ff"),
        max_sequence_length=_number(config, "n_positions", default=512),
        is_gated=activation.startswith("gated-"),
        has_slow_gelu=activation in ("gated-gelu", *SLOW_GELUS),
        has_dropout=_has_dropout(config, "dropout_rate", 0.1),
        has_tied_table=bool(config.get("tie_word_embeddings", True)),
    )


def read_sizes(repository: str) -> ModelSizes:
    """Return the sizes of a model on the Hub from its `config.json`; OSError if it cannot be read."""
    from huggingface_hub.errors import HFValidationError

    from hub_tools.foreign.downloads import fetch_file

    try:
        path = fetch_file(repository, "config.json")
    except HFValidationError as error:
        raise ValueError(f"{repository[:80]!r} is not the name of a repository. Write ORG/MODEL.") from error
    try:
        config = read_json(path, MAX_CONFIG_BYTES)
    except ValueError as error:
        raise ValueError(f"config.json of {repository} is not JSON ({error}).") from error
    if not isinstance(config, dict):
        raise ValueError(f"config.json of {repository} is not an object of settings.")
    return sizes_from_config(config)


def fetch_model(
    place: str | Path,
    *,
    revision: str | None,
    patterns: Sequence[str],
    num_parameters: int | None = None,
    **options: Any,
) -> Path:
    """Return the folder that is named, or one with the matching files of a repository; raises as `fetch_files`.

    Weights are taken as large as so many parameters can be, with an optimizer's state; None: as the `config.json` there
    says, where it is of a known kind. Raises ValueError, too, for sizes that no model has.
    """
    from hub_tools.foreign.downloads import fetch_files

    repository = str(place)
    if Path(place).is_dir():
        return Path(place)
    if num_parameters is None and not set(patterns) <= set(PROCESSOR_FILES):
        folder = fetch_files(repository, revision=revision, patterns=[CONFIG_FILE], **options)
        config = read_json(folder / CONFIG_FILE, MAX_CONFIG_BYTES) if (folder / CONFIG_FILE).is_file() else {}
        if isinstance(config, dict) and config.get("model_type") in KNOWN_MODEL_TYPES:
            num_parameters = estimate_training_memory(_sizes(config), MemorySettings()).num_parameters
        revision = folder.name
    most = None if num_parameters is None else BYTES_OF_A_PARAMETER * num_parameters + SPARE_BYTES
    return fetch_files(repository, revision=revision, patterns=patterns, most_weights_bytes=most, **options)
