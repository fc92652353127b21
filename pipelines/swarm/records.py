"""What peers publish about themselves: signed records in the DHT, checked before use."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import hivemind
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.optim.progress_tracker import LocalTrainingProgress, TrainingProgressSchema
from hivemind.utils import get_dht_time

# hivemind's schemas are made of pydantic 1 models; a pydantic 2 model fails inside its validator.
from pydantic.v1 import BaseModel, StrictBool, conbytes, confloat, conint, conlist, constr, create_model

from pipelines.admission.client import PeerAdmission
from pipelines.admission.record_owners import AdmissionRecords
from pipelines.admission.tokens import MAX_TOKEN_CHARACTERS
from pipelines.swarm.record_limits import (
    MOST_COUNTED,
    MOST_SECONDS,
    ProgressBounds,
    RecordLimits,
    keep_places,
    sender_name,
)
from pipelines.swarm.servers.complaints import COMPLAINT_SECONDS, ComplaintsRecord
from pipelines.swarm.servers.server_record import SERVER_SECONDS, Count, Measured, ServerRecord

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


class PeerIntroduction(BaseModel):
    """Who a training peer is; known before its first epoch ends, and while epochs last longer than figures."""

    username: constr(max_length=96)
    device: constr(max_length=64)
    """Human-readable device name."""

    client_mode: StrictBool
    package_version: constr(max_length=32)


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """A training peer's record of its progress, and until when it is valid."""

    progress: LocalTrainingProgress
    valid_until: float
    """DHT time. A peer renews its record before half of its lifetime has passed: one that does not has left."""


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Who stands behind a peer's figures."""

    user: str
    """The admitted user; in an open run the peer itself."""

    sender: str
    """The peer's name in the figures of others, see `sender_name`."""

    device: str = ""
    """What the peer says that it computes on; empty: it has not said."""


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


Whole = conint(ge=0, le=2**31, strict=True)

SpanFields = conlist(Whole, min_items=5, max_items=5)
"""Pass, shard, row group, first record, the one behind the last; see `ledger.spans`."""

NUM_LEASE_KEYS = 64
"""Keys over which the leases of a run are spread, by the peers' names: as many peers as a key has owners fit."""

MOST_SPANS_LEASED = 64
MOST_EPOCHS_REPORTED, MOST_SPANS_REPORTED = 32, 256
MOST_GRADIENTS, MOST_GRADIENT_SPANS, MOST_BATCHES = 24, 160, 4096


class PeerLease(BaseModel):
    """What is on one peer's lease."""

    name: constr(regex="^[0-9a-f]{16}$")
    """See `sender_name`."""

    booked_epoch: conint(ge=-1, le=MOST_COUNTED, strict=True)
    """The newest epoch of which its records are booked."""

    spans: conlist(SpanFields, max_items=MOST_SPANS_LEASED)


class LeaseRecord(BaseModel):
    """What an anchor leases to some peers. Its own signature counts, not the record's; see `ledger.statements`."""

    publisher_key: constr(max_length=96)
    time: Measured
    """When this was so, in DHT time."""

    leases: conlist(PeerLease, max_items=256)
    signature: constr(max_length=128)


class EpochRecords(BaseModel):
    """The records whose gradients a peer sent into the round of one epoch."""

    epoch: Count
    spans: conlist(SpanFields, max_items=MOST_SPANS_REPORTED)


class TrainedRecord(BaseModel):
    """What a peer has trained on and no anchor has booked yet; without anything it asks for a lease."""

    epochs: conlist(EpochRecords, max_items=MOST_EPOCHS_REPORTED)


class GradientRecord(BaseModel):
    """What the gradient of some batches was; see `ledger.batch_gradients`."""

    epoch: Count
    """Of the round that averaged it."""

    model_epoch: Count
    spans: conlist(SpanFields, min_items=1, max_items=MOST_GRADIENT_SPANS)
    num_batches: conint(ge=1, le=MOST_BATCHES, strict=True)
    sketch: conlist(confloat(ge=-1e30, le=1e30, strict=True), min_items=8, max_items=8)


class GradientsRecord(BaseModel):
    """What a peer's newest gradients were."""

    gradients: conlist(GradientRecord, max_items=MOST_GRADIENTS)


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


class _SwarmRecords(BaseModel):
    grad_averager_searches: dict[BytesWithPublicKey, SearchRecord]
    metrics: dict[BytesWithPublicKey, PeerMetrics]
    introductions: dict[BytesWithPublicKey, PeerIntroduction]
    auxiliary: dict[BytesWithPublicKey, AuxiliaryStatus]
    states: dict[BytesWithPublicKey, StateRecord]
    anchors: dict[BytesWithPublicKey, AnchorRecord]
    admissions: dict[BytesWithPublicKey, constr(max_length=MAX_TOKEN_CHARACTERS)]
    trained: dict[BytesWithPublicKey, TrainedRecord]
    gradients: dict[BytesWithPublicKey, GradientsRecord]
    servers: dict[BytesWithPublicKey, ServerRecord]
    complaints: dict[BytesWithPublicKey, ComplaintsRecord]


_SwarmLeases = create_model(
    "_SwarmLeases",
    __module__=__name__,
    **{f"leases_{number}": (dict[BytesWithPublicKey, LeaseRecord], ...) for number in range(NUM_LEASE_KEYS)},
)


class SwarmRecords:
    """Reads and writes the run's signed records; every process that touches them opens one of these first."""

    def __init__(self, dht: hivemind.DHT, run_id: str, *, admission: PeerAdmission | None) -> None:
        """`admission` is this peer's; None: nothing is checked, and all records count."""
        self._dht, self._run_id = dht, run_id
        self._signature = RSASignatureValidator()
        self.admissions = AdmissionRecords(dht, run_id, admission=admission)
        """Decides whose records count; shared, because it caches look-ups."""

        self._devices: dict[bytes, str] = {}
        """What the peers that introduced themselves compute on, as last read for `reporters`."""

        self._places_of: Collection[str] = ()

    def open(self) -> Self:
        """Make the DHT node check signatures and schemas, and publish this peer's token, now and when it is renewed.

        Without the validators a reader sees the signature as trailing bytes and fails.
        """
        schemas = (_SwarmRecords, _SwarmLeases, TrainingProgressSchema)
        keys = frozenset(f"{self._run_id}_{name}" for kind in schemas for name in kind.__fields__)
        self._dht.add_validators(
            [
                *(SchemaValidator(kind, prefix=self._run_id) for kind in schemas),
                self._signature,
                RecordLimits(keys),
                ProgressBounds(f"{self._run_id}_progress"),
            ]
        )
        self.admissions.keep_published()
        return self

    def keep_places(self, names: Collection[str]) -> None:
        """Have this peer's node keep places for what these peers bring, by `sender_name`; does not wait for it."""
        if names != self._places_of:
            self._places_of = names
            self._dht.run_coroutine(partial(keep_places, names), return_future=True)

    @property
    def owner(self) -> bytes:
        """This process's key in the DHT, under which its own records are found."""
        return self._signature.local_public_key

    @property
    def now(self) -> float:
        """The swarm's time, in seconds."""
        return get_dht_time()

    def publish_metrics(self, metrics: PeerMetrics, lifetime_seconds: float) -> None:
        """Sign and store this peer's figures for `lifetime_seconds`; does not wait for the network."""
        self._publish("metrics", metrics, lifetime_seconds)

    def introduce(self, introduction: PeerIntroduction) -> None:
        """Sign and store who this peer is; does not wait for the network."""
        self._publish("introductions", introduction, INTRODUCTION_SECONDS)

    def publish_auxiliary(self, status: AuxiliaryStatus, lifetime_seconds: float) -> None:
        """Sign and store this auxiliary peer's status for `lifetime_seconds`."""
        self._publish("auxiliary", status, lifetime_seconds)

    def publish_state(self, state: StateRecord, lifetime_seconds: float) -> None:
        """Sign and store for `lifetime_seconds` which state this peer has."""
        self._publish("states", state, lifetime_seconds)

    def publish_anchor(self, statement: AnchorRecord) -> None:
        """Store an anchor's statement for `ANCHOR_SECONDS`."""
        self._publish("anchors", statement, ANCHOR_SECONDS)

    def publish_trained(self, trained: TrainedRecord, lifetime_seconds: float) -> None:
        """Sign and store what this peer has trained on."""
        self._publish("trained", trained, lifetime_seconds)

    def trained(self) -> dict[bytes, TrainedRecord]:
        """Return what the live peers have trained on, by public key."""
        return self._read("trained", TrainedRecord)

    def publish_gradients(self, gradients: GradientsRecord, lifetime_seconds: float) -> None:
        """Sign and store what this peer's newest gradients were."""
        self._publish("gradients", gradients, lifetime_seconds)

    def gradients(self) -> dict[bytes, GradientsRecord]:
        """Return what the live peers' newest gradients were, by public key."""
        return self._read("gradients", GradientsRecord)

    def publish_server(self, server: ServerRecord) -> None:
        """Sign and store for `SERVER_SECONDS` what this peer serves."""
        self._publish("servers", server, SERVER_SECONDS)

    def servers(self) -> dict[bytes, ServerRecord]:
        """Return what the live servers serve, by public key."""
        return self._read("servers", ServerRecord)

    def publish_complaints(self, complaints: ComplaintsRecord) -> None:
        """Sign and store for `COMPLAINT_SECONDS` what this peer has found; waits until it is stored."""
        self._publish("complaints", complaints, COMPLAINT_SECONDS, waits=True)

    def complaints(self) -> dict[bytes, ComplaintsRecord]:
        """Return what auditors say that they have found, by public key: claims, to be shown and not acted upon."""
        return self._read("complaints", ComplaintsRecord)

    def publish_leases(self, number: int, leases: LeaseRecord, lifetime_seconds: float) -> None:
        """Store an anchor's leases under one of `NUM_LEASE_KEYS` keys."""
        self._publish(f"leases_{number}", leases, lifetime_seconds)

    def leases(self, number: int) -> list[LeaseRecord]:
        """Return what anybody has stored as leases under one of the keys: who has signed it is up to the reader."""
        return list(_parse(self._dht.get(f"{self._run_id}_leases_{number}", latest=True), LeaseRecord).values())

    def anchors(self) -> list[AnchorRecord]:
        """Return what anybody has stored as an anchor's statement: who has signed it is up to the reader."""
        return list(_parse(self._dht.get(f"{self._run_id}_anchors", latest=True), AnchorRecord).values())

    def metrics(self) -> dict[bytes, PeerMetrics]:
        """Return the figures of the live peers, by public key.

        In a run with an authority the user name is the one that the authority has admitted.
        """
        return self._read("metrics", PeerMetrics)

    def reporters(self, owners: Collection[bytes]) -> dict[bytes, Reporter]:
        """Return who stands behind the records of these owners, by public key."""
        users, peers = self.admissions.users(owners), self.admissions.peer_ids(owners)
        if not peers.keys() <= self._devices.keys():  # a peer's device is the same until its end
            self._devices = {owner: introduction.device for owner, introduction in self.introductions().items()}
        return {
            owner: Reporter(user=users[owner], sender=sender_name(peer), device=self._devices.get(owner, ""))
            for owner, peer in peers.items()
        }

    def introductions(self) -> dict[bytes, PeerIntroduction]:
        """Return the introductions of the last hour's training peers, by public key."""
        return self._read("introductions", PeerIntroduction)

    def auxiliaries(self) -> dict[bytes, AuxiliaryStatus]:
        """Return the status of the live auxiliary peers, by public key."""
        return self._read("auxiliary", AuxiliaryStatus)

    def auxiliary_terms(self) -> dict[bytes, float]:
        """Return until when, in DHT time, each auxiliary peer's record is valid: the live ones renew theirs."""
        return {key: until for key, (_, until) in self._read_dated("auxiliary", AuxiliaryStatus).items()}

    def states(self) -> dict[bytes, StateRecord]:
        """Return which state each peer claims to have, by public key."""
        return self._read("states", StateRecord)

    def trainers(self) -> set[bytes]:
        """Return the public keys of the live training peers."""
        return set(self._read("progress", LocalTrainingProgress))

    def progress_reports(self) -> dict[bytes, ProgressReport]:
        """Return the progress records of the live training peers, with their expiration, by public key."""
        dated = self._read_dated("progress", LocalTrainingProgress)
        return {key: ProgressReport(progress=progress, valid_until=until) for key, (progress, until) in dated.items()}

    def progress(self) -> dict[bytes, LocalTrainingProgress]:
        """Return the progress records of the live training peers, by public key."""
        return self._read("progress", LocalTrainingProgress)

    def _publish(self, name: str, record: BaseModel, lifetime_seconds: float, *, waits: bool = False) -> None:
        self._dht.store(
            key=f"{self._run_id}_{name}",
            subkey=self.owner,
            value=record.dict(),
            expiration_time=get_dht_time() + min(lifetime_seconds, MOST_SECONDS),
            return_future=not waits,
        )

    def _read(self, name: str, kind: type[BaseModel]) -> dict[bytes, Any]:
        return {key: record for key, (record, _) in self._read_dated(name, kind).items()}

    def _read_dated(self, name: str, kind: type[BaseModel]) -> dict[bytes, tuple[Any, float]]:
        found = self._dht.get(f"{self._run_id}_{name}", latest=True)
        counted = self.admissions.counted(_parse(found, kind))
        return {key: (record, found.value[key].expiration_time) for key, record in counted.items()}


def _parse(found: Any, kind: type[BaseModel]) -> dict[bytes, Any]:
    values = found.value if found is not None and isinstance(found.value, dict) else {}
    return {key: kind.parse_obj(entry.value) for key, entry in values.items() if entry.value is not None}
