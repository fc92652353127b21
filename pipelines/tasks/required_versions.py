"""Versions of the packages that peers of a new run must share."""

import importlib.metadata

from packaging.requirements import Requirement

from pipelines.core.run.versions import package_version

PACKAGES_ON_THE_WIRE = ("hivemind", "numpy", "torch")
"""Packages whose versions decide whether peers understand each other's tensors."""


def required_versions() -> dict[str, str]:
    """Return the versions that peers of a new run must have: this package's own ranges for what affects the wire."""
    ranges = {requirement.name: str(requirement.specifier) for requirement in _requirements()}
    python = importlib.metadata.metadata("dalle-collab")["Requires-Python"]
    same_wire = ".".join(package_version().split(".")[:2])
    return {
        "python": python,
        "dalle-collab": f"=={same_wire}.*",
        **{name: ranges[name] for name in PACKAGES_ON_THE_WIRE},
    }


def _requirements() -> list[Requirement]:
    return [Requirement(text) for text in importlib.metadata.requires("dalle-collab") or []]
