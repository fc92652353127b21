"""Features that the core knows by their names alone: each is imported when a run asks for it."""

import importlib
from typing import Any

FEATURES = "pipelines.features"


class MissingFeatureError(ValueError):
    """A feature that a run asks for is not installed."""


def named_feature(place: str) -> Any:
    """Return what is at `module:name` of a feature.

    Raises:
        MissingFeatureError: this package lacks the feature.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in (FEATURES, ".".join(module.split(".")[:3])):
            raise  # the feature is there, and lacks something
        raise MissingFeatureError(
            f"The run asks for {name}, for which this package lacks {error.name}. Cure: pip install -U dalle-collab"
        ) from error
