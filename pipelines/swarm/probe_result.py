"""What a look at the swarm has brought: values for the pure decisions in `swarm_checks`."""

from dataclasses import dataclass

from pipelines.swarm.dialling import Call


@dataclass(frozen=True, kw_only=True)
class EntryFinding:
    """What one entry address of the run has to say."""

    call: Call
    """How the plain call to the address went."""

    peer_id: str = ""

    answers: bool = False
    """Whether the peer that the address names answers a DHT ping."""

    refusal: str = ""
    """What it said instead, or what libp2p said."""

    ping_seconds: float | None = None

    clock_offset: float | None = None
    """Seconds by which the peer's clock is ahead of this machine's."""

    knows: frozenset[str] = frozenset()
    """Other entry peers that can be found in the DHT from here."""

    num_trainers: int | None = None
    """Training peers of the run whose records can be found from here."""


@dataclass(frozen=True, kw_only=True)
class SwarmFinding:
    """One look at the swarm through all its entry addresses."""

    daemon_seconds: float | None
    """Time the libp2p daemon took to start; None if it did not."""

    daemon_error: str = ""
    num_daemon_starts: int = 1

    entries: tuple[EntryFinding, ...] = ()

    listening: tuple[str, ...] = ()
    """Addresses of this peer that others were asked to call."""

    seen_as: str = ""
    """Address from which another peer sees this one; empty if none has told."""

    calls_back: tuple[Call, ...] | None = None
    """How their calls went; None if no peer offers to call back."""
