"""What the owner of a dashboard chooses, from the environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pipelines.tools.pages.run_pages import space_address

REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """The run to show, and the Spaces to link to."""

    run: str
    """Repository `ORG/RUN`."""

    demo_space: str = ""
    """Address of the Space that draws pictures; empty: no link."""

    join_space: str = ""
    """Address of the Space through which people join."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises:
            ValueError: the run is not named, or a value is neither the name of a repository nor an address.
        """
        run = environment.get("RUN", "").strip()
        if not run:
            raise ValueError("RUN is not set. Name the run to show: RUN=ORG/RUN")
        if not REPOSITORY.fullmatch(run):
            raise ValueError(f"RUN is {run[:80]!r}; expected the name of a repository: RUN=ORG/RUN")
        spaces = ("DEMO_SPACE", "JOIN_SPACE")
        return cls(run=run, **{name.lower(): space_address(name, environment.get(name, "")) for name in spaces})


def other_run(value: str, own: str) -> str:
    """Return the run to compare with, which is none or another; raises ValueError for what is no run's name."""
    value = value.strip()
    if value and not REPOSITORY.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is not the name of a run; expected ORG/RUN.")
    return "" if value == own else value
