"""Results of probing the swarm: values for the pure decisions in `swarm_checks`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.core.swarm.records import RecordKind
from pipelines.features.reachability.tcp_calls import Call


@dataclass(frozen=True, kw_only=True)
class EntryFinding:
    """The result for one entry address of the run."""

    call: Call
    """Result of the plain call to the address."""

    peer_id: str = ""

    answers: bool = False
    """Whether the peer that the address names answers a DHT ping."""

    refusal: str = ""
    """Its answer instead, or libp2p's error."""

    ping_seconds: float | None = None

    clock_offset: float | None = None
    """Seconds by which the peer's clock is ahead of this machine's."""

    knows: frozenset[str] = frozenset()
    """Other entry peers that can be found in the DHT from here."""

    num_trainers: int | None = None
    """Training peers of the run whose records can be found from here."""

    records: Mapping[RecordKind, Mapping[bytes, Any]] = field(default_factory=dict)
    """The records of the kinds that were asked for which count, by owner."""


@dataclass(frozen=True, kw_only=True)
class SwarmFinding:
    """A probe of the swarm through all its entry addresses."""

    daemon_seconds: float | None
    """Time the libp2p daemon took to start; None if it did not."""

    daemon_error: str = ""
    num_daemon_starts: int = 1

    entries: tuple[EntryFinding, ...] = ()

    listening: tuple[str, ...] = ()
    """Addresses of this peer that others were asked to call."""

    seen_as: str = ""
    """This peer's address as seen by another; empty if unknown."""

    calls_back: tuple[Call, ...] | None = None
    """Results of their calls; None if no peer offers to call back."""
