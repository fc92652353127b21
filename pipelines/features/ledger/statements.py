"""What anchors and peers say of leases in the swarm: an anchor's signed leases, a peer's signed report."""

from collections.abc import Mapping, Sequence

from pipelines.core.run.spans import Span
from pipelines.core.signing.publisher_keys import PublisherKey, is_current, is_signed_by
from pipelines.core.signing.signed_statement import canonical_json, signed_bytes
from pipelines.core.state.anchors import SECONDS_FRESH
from pipelines.core.swarm.record_limits import MOST_BYTES
from pipelines.features.ledger.batch_gradients import BatchGradient
from pipelines.features.ledger.ledger import Ledger
from pipelines.features.ledger.records import (
    MOST_SPANS_LEASED,
    NUM_LEASE_KEYS,
    EpochRecords,
    GradientRecord,
    GradientsRecord,
    LeaseRecord,
    PeerLease,
    TrainedRecord,
)

MOST_LEASE_BYTES = MOST_BYTES - 1024
"""Of a record's leases, as JSON, which takes more than a record's msgpack; the rest is for signatures and keys."""

MOST_LEASES = 256
"""Peers of one key."""


def lease_key(name: str) -> int:
    """The number of the key under which a peer's lease is."""
    return int(name, 16) % NUM_LEASE_KEYS


def signed_leases(key: PublisherKey, swarm_id: str, ledger: Ledger, now: float) -> dict[int, LeaseRecord]:
    """An anchor's statements by the numbers of their keys; `now` in DHT time."""
    held: dict[int, list[PeerLease]] = {}
    # Who has trained comes first: names cost nothing, and those of one key may be more than a record holds.
    for name in sorted(ledger.names, key=lambda name: (-ledger.booked_epoch(name), name)):
        spans = [list(span) for span in ledger.lease_of(name)[:MOST_SPANS_LEASED]]
        lease = PeerLease(name=name, booked_epoch=ledger.booked_epoch(name), spans=spans)
        held.setdefault(lease_key(name), []).append(lease)
    return {number: _signed(key, swarm_id, number, fitting(leases), now) for number, leases in held.items()}


def fitting(leases: Sequence[PeerLease]) -> list[PeerLease]:
    """The first leases, with so many spans of each peer that a record holds them: those left out are told of later."""
    most, leases = MOST_SPANS_LEASED, leases[:MOST_LEASES]
    while most and _is_too_large(leases):
        most //= 2
        leases = [lease.copy(update=dict(spans=lease.spans[:most])) for lease in leases]
    while _is_too_large(leases):
        leases = leases[: len(leases) // 2]
    return list(leases)


def _is_too_large(leases: Sequence[PeerLease]) -> bool:
    return len(canonical_json([lease.dict() for lease in leases])) > MOST_LEASE_BYTES


def _signed(key: PublisherKey, swarm_id: str, number: int, leases: Sequence[PeerLease], now: float) -> LeaseRecord:
    record = LeaseRecord(publisher_key=key.public, time=now, leases=list(leases), signature="")
    return record.copy(update=dict(signature=key.sign(_statement(record, swarm_id, number))))


def _statement(record: LeaseRecord, swarm_id: str, number: int) -> bytes:
    leases = [[lease.name, lease.booked_epoch, lease.spans] for lease in record.leases]
    return signed_bytes("leases", swarm_id, number, record.publisher_key, float(record.time), leases)


def valid_leases(
    records: Sequence[LeaseRecord], number: int, swarm_id: str, keys: Sequence[str], now: float
) -> dict[str, LeaseRecord]:
    """The fresh statement of each of the anchors' keys that is the newest, of those that it has signed."""
    found: dict[str, LeaseRecord] = {}
    for record in sorted(records, key=lambda record: float(record.time)):
        is_dated = record.publisher_key in keys and is_current(record.time, now, SECONDS_FRESH)
        if is_dated and is_signed_by(record.publisher_key, _statement(record, swarm_id, number), record.signature):
            found[record.publisher_key] = record
    return found


def lease_in(record: LeaseRecord, name: str) -> tuple[list[Span], int] | None:
    """What a statement leases to a peer, and up to which epoch its records are booked; None: it does not name it."""
    for lease in record.leases:
        if lease.name == name:
            return spans_in(lease.spans), lease.booked_epoch
    return None


def trained_record(report: Mapping[int, Sequence[Span]]) -> TrainedRecord:
    """What a peer says of the records in its gradients."""
    epochs = [EpochRecords(epoch=epoch, spans=[list(span) for span in spans]) for epoch, spans in report.items()]
    return TrainedRecord(epochs=epochs)


def gradients_record(gradients: Mapping[int, Sequence[BatchGradient]]) -> GradientsRecord:
    """What a peer says of its gradients, all of which have sketches."""
    return GradientsRecord(
        gradients=[
            GradientRecord(
                epoch=epoch,
                model_epoch=gradient.model_epoch,
                spans=[list(span) for span in gradient.spans],
                num_batches=gradient.num_batches,
                sketch=list(gradient.sketch or ()),
            )
            for epoch, batches in gradients.items()
            for gradient in batches
        ]
    )


def spans_in(fields: Sequence[Sequence[int]]) -> list[Span]:
    """Spans from a record's numbers; those of no record are left out."""
    return [span for span in (Span(*values) for values in fields) if span.start < span.stop]
