"""Features that the core knows by their names alone: each is imported when a run asks for it."""

import importlib
from typing import Any


def named_feature(place: str) -> Any:
    """Return what is at `module:name`; raises ModuleNotFoundError if this package lacks it."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
