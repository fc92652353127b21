"""The records of the core: what trainers and the peers that keep a run's state publish about themselves.

Without hivemind: what is made of them, such as a run's metrics, does not need it.
"""

from dataclasses import dataclass

# hivemind's schemas are made of pydantic 1 models; a pydantic 2 model fails inside its validator.
from pydantic.v1 import BaseModel, StrictBool, conbytes, confloat, conint, conlist, constr

MOST_COUNTED = 2**53
"""JSON, Parquet and a float64 hold all whole numbers up to here exactly."""

Count = conint(ge=0, le=MOST_COUNTED, strict=True)
"""Bounded, because other readers must not fail because of one record."""

Measured = confloat(ge=0.0, le=1e15, strict=True)
"""A finite figure; neither infinity nor NaN is at most 1e15."""

INTRODUCTION_SECONDS = 3600.0
"""Lifetime of an introduction: it is renewed with the figures of every epoch, and epochs may be long."""

MAX_SUSPECTS = 8
"""Most suspects in one peer's figures; the most frequent are kept."""

ANCHOR_SECONDS = 43_200.0
"""Lifetime of an anchor's statement: while it is away, others still learn whom it averaged with."""

MOST_IN_ROSTER = 256
"""Peers that an anchor's statement names: 4 KiB of names."""


class SuspectRecord(BaseModel):
    """A peer's report about a misbehaving one; see `suspects.Suspect`."""

    peer_id: constr(max_length=96)
    offence: constr(max_length=32)
    num_rounds: conint(ge=1, le=MOST_COUNTED, strict=True)


class PeerMetrics(BaseModel):
    """One training peer's figures, published after every epoch."""

    username: constr(max_length=96)
    epoch: Count
    loss: Measured
    num_samples: Count
    samples_per_second: Measured
    share_averaged: confloat(ge=0.0, le=1.0, strict=True)
    bytes_sent: Count
    num_rounds: Count
    round_seconds: Measured
    num_refused_gradients: Count
    client_mode: StrictBool
    package_version: constr(max_length=32)
    num_incomplete_rounds: Count = 0
    num_withheld: Count = 0
    suspects: conlist(SuspectRecord, max_items=MAX_SUSPECTS) = []


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Who stands behind a peer's figures."""

    user: str
    """The admitted user; in an open run the peer itself."""

    sender: str
    """The peer's name in the figures of others, see `sender_name`."""

    device: str = ""
    """What the peer says that it computes on; empty: it has not said."""


class PeerIntroduction(BaseModel):
    """Who a training peer is; known before its first epoch ends, and while epochs last longer than figures."""

    username: constr(max_length=96)
    device: constr(max_length=64)
    """Human-readable device name."""

    client_mode: StrictBool
    package_version: constr(max_length=32)


class AuxiliaryStatus(BaseModel):
    """What an auxiliary peer has and has published."""

    held_epoch: Count
    published_epoch: Count
    addresses: conlist(constr(max_length=256), max_items=16)
    publisher_key: constr(max_length=96) = ""
    publisher_proof: constr(max_length=128) = ""


class AnchorRecord(BaseModel):
    """What an anchor says of the run. Its own signature counts, not the record's; see `state.anchors`."""

    publisher_key: constr(max_length=96)
    epoch: Count
    digest: constr(regex="^[0-9a-f]{64}$")
    time: Measured
    """When this was so, in DHT time."""

    roster: conlist(constr(regex="^[0-9a-f]{16}$"), max_items=MOST_IN_ROSTER) = []
    """Names of the peers that the anchor keeps averaging with; see `sender_name`."""

    returns: StrictBool = False
    """Whether the run goes on from this state, although some peers have later ones."""

    signature: constr(max_length=128)


class StateRecord(BaseModel):
    """Which training state a peer has; see `digest`."""

    peer_id: constr(max_length=96)
    """libp2p id under which it serves the state."""

    epoch: Count
    digest: constr(regex="^[0-9a-f]{64}$")
    shares: StrictBool
    """Whether it serves the state; peers behind a firewall only name it."""


class SearchRecord(BaseModel):
    """Whether a peer is looking for a group; see `PacedKeyManager`."""

    peer_id: conbytes(strict=True, min_length=1, max_length=64)
    is_looking: StrictBool
