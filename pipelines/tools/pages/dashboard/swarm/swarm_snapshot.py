"""A snapshot of a swarm, written by the reading process and read by the dashboard: JSON, checked value by value.

Figures are the peers' own reports. Impossible ones become None and are counted, so that one liar spoils nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hub_tools.checks import is_number
from hub_tools.printing.printable import one_line

LARGEST = {"epoch": 1e9, "num_samples": 1e15, "samples_per_second": 1e7, "loss": 1e6, "share_averaged": 1.0}
LARGEST |= {"draw_rate": 1e9, "layer_rate": 1e9, "num_drawn": 1e12, "first_layer": 65536, "end_layer": 65536}
LARGEST |= {"round_seconds": 1e6, "bytes_sent": 1e18, "num_rounds": 1e9, "num_refused_gradients": 1e12}
"""No honest peer's figure exceeds this."""

MAX_TEXT = 96
MAX_OUTVOTED = 64
MAX_ACCUSED, MAX_ACCUSERS = 32, 3


@dataclass(frozen=True, kw_only=True)
class AccusedPeer:
    """One peer's report about another; see `records.SuspectRecord`."""

    peer_id: str
    offence: str
    num_rounds: int


@dataclass(frozen=True, kw_only=True)
class PeerFigures:
    """What a peer published after its last epoch; input of `epoch_summary.summarise_epoch`."""

    epoch: int
    loss: float
    num_samples: int
    samples_per_second: float
    share_averaged: float
    bytes_sent: int
    num_rounds: int
    round_seconds: float
    num_refused_gradients: int
    suspects: tuple[AccusedPeer, ...]


@dataclass(frozen=True, kw_only=True)
class SeenPeer:
    """A training peer in one snapshot."""

    key: str
    """Short name of its public key."""

    peer_id: str
    username: str
    """Untrusted text, like `device` and `package_version`; empty while unknown."""

    device: str
    package_version: str
    client_mode: bool
    epoch: int | None
    samples_per_second: float | None
    valid_until: float
    """Expiration of its progress record, which changes whenever the peer renews it."""

    figures: PeerFigures | None
    num_impossible: int
    """Number of impossible figures."""


@dataclass(frozen=True, kw_only=True)
class SeenServer:
    """A peer that serves the run's model; see `servers.server_record.ServerRecord`. All is its own word."""

    peer_id: str
    username: str
    state: str
    revision: str
    """SHA-256 of the weights' file."""

    precision: str
    """Untrusted text, like those before."""

    epoch: int
    codes_per_second: float
    ranks: bool
    """Whether it says that it ranks pictures."""

    num_drawn: int
    first_layer: int
    end_layer: int
    layers_per_second: float


@dataclass(frozen=True, kw_only=True)
class AccusedServer:
    """A server about which auditors complain: their claim; see `servers.complaints`."""

    peer_id: str
    accusers: tuple[str, ...]
    """The first of them; untrusted text."""

    num_accusers: int
    num_audited: int


@dataclass(frozen=True, kw_only=True)
class StateVerdict:
    """Whether peers that should have the same training state do; see `votes.VoteResult`."""

    epoch: int
    num_votes: int
    num_voters: int
    outvoted: tuple[str, ...]
    """libp2p ids."""


@dataclass(frozen=True, kw_only=True)
class SwarmSnapshot:
    """One snapshot of the swarm."""

    time: float
    """Seconds since 1970, by the observing machine's clock."""

    peers: tuple[SeenPeer, ...] = ()
    verdict: StateVerdict | None = None
    servers: tuple[SeenServer, ...] = ()
    """Those whose figures are possible, the fastest first."""

    accused: tuple[AccusedServer, ...] = ()
    num_auxiliaries: int = 0
    """Auxiliary peers that say they are there."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Build a snapshot from parsed JSON; raises KeyError, TypeError or ValueError if it is not one."""
        verdict = values["verdict"]
        servers = [server for values in values.get("servers", ()) if (server := _server(values)) is not None]
        return cls(
            time=float(values["time"]),
            peers=tuple(_peer(peer) for peer in values["peers"]),
            verdict=verdict and StateVerdict(**{**verdict, "outvoted": tuple(verdict["outvoted"][:MAX_OUTVOTED])}),
            servers=tuple(
                sorted(servers, key=lambda one: (-one.codes_per_second, -one.layers_per_second, one.peer_id))
            ),
            num_auxiliaries=int(values["num_auxiliaries"]),
            accused=tuple(map(_accused_server, _sequence(values.get("accused"))[:MAX_ACCUSED])),
        )


def possible(name: str, value: object) -> float | None:
    """Return a figure if it is possible, else None."""
    return value if is_number(value) and 0 <= value <= LARGEST[name] else None


def _peer(values: Mapping[str, Any]) -> SeenPeer:
    progress, metrics = values["progress"], values.get("metrics")
    introduction = values.get("introduction") or metrics or {}
    figures, num_impossible = _figures(metrics) if metrics else (None, 0)
    epoch = possible("epoch", progress["epoch"])
    speed = possible("samples_per_second", progress["samples_per_second"])
    return SeenPeer(
        key=str(values["key"]),
        peer_id=_text(values["peer_id"]),
        username=_text(introduction.get("username")),
        device=_text(introduction.get("device")),
        package_version=_text(introduction.get("package_version")),
        client_mode=bool(progress["client_mode"]),
        epoch=None if epoch is None else int(epoch),
        samples_per_second=speed,
        valid_until=float(values["valid_until"]),
        figures=figures,
        num_impossible=num_impossible + (epoch is None) + (speed is None),
    )


def _server(values: Mapping[str, object]) -> SeenServer | None:
    names = ("epoch", "draw_rate", "num_drawn", "first_layer", "end_layer", "layer_rate")
    figures = [possible(name, values[name]) for name in names]
    if None in figures:
        return None
    epoch, draw_rate, num_drawn, first_layer, end_layer, layer_rate = map(float, figures)
    return SeenServer(
        **{name: _text(values[name]) for name in ("peer_id", "username", "state", "revision", "precision")},
        epoch=int(epoch),
        codes_per_second=draw_rate,
        ranks=values.get("ranks") is True,
        num_drawn=int(num_drawn),
        first_layer=int(first_layer),
        end_layer=int(end_layer),
        layers_per_second=layer_rate,
    )


def _accused_server(values: Mapping[str, Any]) -> AccusedServer:
    accusers = _sequence(values["accusers"])
    return AccusedServer(
        peer_id=_text(values["server"]),
        accusers=tuple(map(_text, accusers[:MAX_ACCUSERS])),
        num_accusers=len(accusers),
        num_audited=int(values["num_audited"]),
    )


def _figures(metrics: Mapping[str, Any]) -> tuple[PeerFigures | None, int]:
    """Return the figures, None if any is impossible, and the number of impossible ones."""
    names = [name for name in PeerFigures.__dataclass_fields__ if name != "suspects"]
    wrong = sum(possible(name, metrics[name]) is None for name in names)
    if wrong:
        return None, wrong
    suspects = tuple(_accused(suspect) for suspect in _sequence(metrics.get("suspects")))
    return PeerFigures(**{name: metrics[name] for name in names}, suspects=suspects), 0


def _accused(values: Mapping[str, Any]) -> AccusedPeer:
    return AccusedPeer(
        peer_id=_text(values["peer_id"]), offence=_text(values["offence"]), num_rounds=int(values["num_rounds"])
    )


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    """Return one short line of printable text."""
    text = "" if value is None else str(value)
    return one_line(text, MAX_TEXT)
