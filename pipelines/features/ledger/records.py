"""What anchors and peers publish about leases: kinds of records that a swarm whose data is leased has."""

# hivemind's schemas are made of pydantic 1 models; a pydantic 2 model fails inside its validator.
from pydantic.v1 import BaseModel, confloat, conint, conlist, constr

from pipelines.core.swarm.peer_records import MOST_COUNTED, Count, Measured
from pipelines.core.swarm.records import RecordKind

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


LEASES = RecordKind("leases", LeaseRecord, num_keys=NUM_LEASE_KEYS)
TRAINED = RecordKind("trained", TrainedRecord)
GRADIENTS = RecordKind("gradients", GradientsRecord)
