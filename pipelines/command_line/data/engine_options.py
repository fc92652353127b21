"""Who makes the shards: this process, one of several jobs, or a cluster."""

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

import typer

from hub_tools.checks import check_choice

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.data_preparation.engines.part import Part

ENGINES = ("local", "ray")
DEVICES_OF_CLUSTER = ("cpu", "cuda")
EngineName = Annotated[
    str, typer.Option(help="Who makes the shards: local; ray, or ray:HOST:PORT for a cluster that runs.")
]
PartName = Annotated[
    str | None, typer.Option(metavar="I/N", help="Make one part of N; N jobs share the sources and the output.")
]


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """An engine, checked as far as that is possible at once."""

    name: str
    """One of ENGINES."""
    address: str | None
    """Of the Ray cluster; None: one is started here."""
    part: "Part | None"
    """Of this job; None: there is only one."""

    @classmethod
    def parse(cls, engine: str, part: str | None, device: str) -> Self:
        """The engine that the options mean; ValueError for those that do not fit together."""
        from pipelines.tasks.text_to_image.data_preparation.engines.part import Part

        name, _, address = engine.partition(":")
        check_choice("--engine", name, ENGINES)
        if name == "local" and address:
            raise ValueError(f"--engine is {engine!r}; only ray has an address: --engine ray:HOST:PORT")
        if name == "local":
            return cls(name=name, address=None, part=Part.parse(part) if part else None)
        if part is not None:
            raise ValueError(
                "--part is for jobs without an engine: Ray itself hands out the shards. Leave one of them out."
            )
        if importlib.util.find_spec("ray") is None:
            raise ValueError("--engine ray needs a package that is not installed: pip install 'dalle-collab[ray]'")
        check_choice("--device with --engine ray", device, DEVICES_OF_CLUSTER)
        return cls(name=name, address=address or os.environ.get("RAY_ADDRESS"), part=None)
