"""The version of this package."""

import importlib.metadata


def package_version() -> str:
    """Return the installed version of this package."""
    return importlib.metadata.version("dalle-collab")
