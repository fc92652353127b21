"""Tests of the core that need a feature: they are left out where the core is tested without it."""

import importlib.util

import pytest


def needs_feature(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where a feature is not installed."""
    try:
        is_there = importlib.util.find_spec(f"pipelines.features.{name}") is not None
    except ModuleNotFoundError:
        is_there = False
    return pytest.mark.skipif(not is_there, reason=f"the feature {name} is not installed")


ALL_OPTIMIZERS = ["lamb", "adamw", pytest.param("muon", marks=needs_feature("optimizers"))]
