"""Interpreters in which only some of the installed packages can be imported, as on somebody else's machine."""

import importlib.metadata
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hub_tools.publishing.space_bundling import PACKAGES as PROJECT


def environment_without(
    packages: Iterable[str], environment: Mapping[str, str] = os.environ, visible_folder: Path | str = ""
) -> dict[str, str]:
    """Return the environment of a process that cannot import these top-level packages, unless from one folder."""
    return {
        **environment,
        "PYTHONPATH": str(Path(__file__).parent),
        "HIDDEN_PACKAGES": ",".join(packages),
        "VISIBLE_FOLDER": str(visible_folder),
    }


def packages_beside(requirements: Iterable[str]) -> set[str]:
    """Return the top-level packages of this installation that would be missing if only these were installed."""
    wanted = _with_dependencies(requirements)
    owners = importlib.metadata.packages_distributions()
    missing = {package for package, names in owners.items() if not wanted & set(map(canonicalize_name, names))}
    return missing | set(PROJECT)


def _with_dependencies(requirements: Iterable[str]) -> set[str]:
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in found:
                found.add((name, wanted))
                waiting += [(Requirement(line), wanted) for line in _requirements_of(name)]
    return {name for name, _ in found}


def _requirements_of(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []  # for another platform, or one that the test does not come across
