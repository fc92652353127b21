"""Sizes from the config.json of a model on the Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hub_tools.foreign.json_texts import read_json
from hub_tools.run_files import CONFIG_FILE, PROCESSOR_FILES
from pipelines.features.memory_estimate.estimate import count_parameters
from pipelines.features.memory_estimate.model_presets import ModelSizes

MAX_CONFIG_BYTES = 10**6

BYTES_OF_A_PARAMETER, SPARE_BYTES = 32, 2**24
"""What a checkpoint has at most: weights and an optimizer's statistics in float32, and as much again; headers."""


def read_sizes(repository: str) -> ModelSizes:
    """Return the sizes of a model on the Hub from its `config.json`.

    Raises OSError if it cannot be read, and ValueError for other kinds of models and bad numbers.
    """
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
    sizes = ModelSizes.of(config)
    count_parameters(sizes)
    return sizes


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
    from pipelines.features.memory_estimate.architectures import is_known

    repository = str(place)
    if Path(place).is_dir():
        return Path(place)
    if num_parameters is None and not set(patterns) <= set(PROCESSOR_FILES):
        folder = fetch_files(repository, revision=revision, patterns=[CONFIG_FILE], **options)
        config = read_json(folder / CONFIG_FILE, MAX_CONFIG_BYTES) if (folder / CONFIG_FILE).is_file() else {}
        if isinstance(config, dict) and is_known(config):
            num_parameters = count_parameters(ModelSizes.of(config))
        revision = folder.name
    most = None if num_parameters is None else BYTES_OF_A_PARAMETER * num_parameters + SPARE_BYTES
    return fetch_files(repository, revision=revision, patterns=patterns, most_weights_bytes=most, **options)
