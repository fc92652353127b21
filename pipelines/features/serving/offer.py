"""What one machine may choose that serves a run's model, and what it offers to others: drawings, or some layers."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from pipelines.core.peer.pausing import PauseSwitch
from pipelines.core.peer.volunteer import EventHandler
from pipelines.core.swarm.streams.server import Service
from pipelines.features.publishing.repository.snapshot import RunSnapshot
from pipelines.features.serving.blocks.discovery import MOST_LAYERS
from pipelines.features.serving.draw.requests import PRECISIONS
from pipelines.features.serving.entering import SwarmConnection

AUTO = "auto"
PRECISIONS_OF_LAYERS = ("float32", "int8")


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """Local choices of one server."""

    blocks: str | None = None
    """None: whole drawings. For layers `START:END`, or `auto`: as many as fit, where they help most; the server then
    moves when that helps."""

    device: str = "auto"
    precision: str = "float32"
    """One of `PRECISIONS`, for layers of `PRECISIONS_OF_LAYERS`. Equal pictures are promised among float32 servers."""

    cpu_threads: int | None = None
    memory_gibibytes: float | None = None
    """For others' drawings, or caches and passes, beside the weights; None: half of what is free, and `auto` leaves as
    much."""

    weights_gibibytes: float | None = None
    """With `auto`: for the weights, which some processors need twice. None: what is free beside the caches."""

    most_codes_per_second: float | None = None
    """Of drawings: what this machine gives at most; None: all it can."""

    ranks: bool = False
    """Of drawings: whether candidates are ranked for others, too, with the run's CLIP."""

    look_seconds: float = 60.0
    """How often it is looked for a newer checkpoint, and for better layers."""

    max_hours: float | None = None
    name: str | None = None
    """What clients see, in an open run; None: the Hub user's name. Where an authority admits, it says the name."""

    def __post_init__(self) -> None:
        if self.blocks is None and self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}, expected one of {', '.join(PRECISIONS)}.")
        if self.blocks is not None and self.precision not in PRECISIONS_OF_LAYERS:
            raise ValueError(
                f"precision is {self.precision!r}, expected {' or '.join(PRECISIONS_OF_LAYERS)} to serve layers."
            )
        positive = ("cpu_threads", "memory_gibibytes", "weights_gibibytes", "most_codes_per_second", "look_seconds")
        for name in (*positive, "max_hours"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} is {value}; expected a number above 0.")
        if self.blocks is not None and (self.ranks or self.most_codes_per_second):
            raise ValueError("ranks and most_codes_per_second are about drawings and have no effect on blocks.")
        self.layers()

    def layers(self) -> range | None:
        """Return the layers that were asked for; None: drawings, or the server chooses."""
        if self.blocks is None or self.blocks == AUTO:
            return None
        start, colon, end = self.blocks.partition(":")
        if not (colon and start.isdecimal() and end.isdecimal() and int(start) < int(end) <= MOST_LAYERS):
            raise ValueError(f"The blocks are {self.blocks!r}, expected START:END such as 0:16, or auto.")
        return range(int(start), int(end))


class Offer(Protocol):
    """What a server computes for others. Made before it enters the swarm: ValueError if it cannot be offered."""

    def choose(self, place: SwarmConnection, on_event: EventHandler) -> Mapping[str, object]:
        """Choose what to serve among others; return what a record says of it until it is loaded."""

    def open(self, stack: ExitStack, on_event: EventHandler, switch: PauseSwitch) -> list[Service]:
        """Load what was chosen; return what answers others, until the end of `stack`, and when `switch` is off.

        ValueError or OSError if that is not possible.
        """

    def record(self) -> Mapping[str, object]:
        """Return what a server's record says of it: `joining` while other weights are loaded."""

    def report(self) -> Any:
        """Return what the server is doing, a dataclass."""

    def renew(self, newest: RunSnapshot | None) -> Mapping[str, object] | None:
        """Serve a newer checkpoint, if there is one, or what else is better; return what is new, None: nothing."""
