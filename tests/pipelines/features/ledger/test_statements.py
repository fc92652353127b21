"""Statements of anchors and peers: who is believed, and whether they fit records of the swarm."""

import hashlib

import pytest
from hivemind.utils import MSGPackSerializer

from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.spans import Span
from pipelines.core.signing.publisher_keys import PublisherKey
from pipelines.core.swarm.record_limits import MOST_BYTES
from pipelines.features.ledger.batch_gradients import BatchGradient
from pipelines.features.ledger.ledger import Ledger, LedgerOptions
from pipelines.features.ledger.records import (
    MOST_EPOCHS_REPORTED,
    MOST_GRADIENT_SPANS,
    MOST_GRADIENTS,
    MOST_SPANS_LEASED,
    MOST_SPANS_REPORTED,
    NUM_LEASE_KEYS,
    GradientsRecord,
    LeaseRecord,
    PeerLease,
    TrainedRecord,
)
from pipelines.features.ledger.statements import (
    MOST_LEASE_BYTES,
    fitting,
    gradients_record,
    lease_in,
    lease_key,
    signed_leases,
    spans_in,
    trained_record,
    valid_leases,
)

NOW = 1_000_000.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return [PublisherKey.load_or_create(folder / f"{number}.pem") for number in range(2)]


def name_of(number):
    return hashlib.sha256(str(number).encode()).hexdigest()[:16]


def ledger_of(num_peers, **options):
    ledger = Ledger(
        BlockOrder(lambda: 12_000, lambda shard: [512] * 16, 0), LedgerOptions(epoch_records=4096, **options)
    )
    names = [name_of(number) for number in range(num_peers)]
    for epoch in range(8):
        ledger.meet({name: name for name in names}, 10.0 * epoch)
        ledger.grant(10.0 * epoch)
        for name in names:
            ledger.book(name, epoch, ledger.lease_of(name)[:1], 10.0 * epoch + 5)
    ledger.grant(100.0)
    return ledger, names


def test_a_peer_finds_its_lease_in_the_statement_of_its_key(keys):
    ledger, names = ledger_of(3)
    statements = signed_leases(keys[0], "swarm", ledger, NOW)
    for name in names:
        number = lease_key(name)
        held = valid_leases([statements[number]], number, "swarm", [keys[0].public], NOW)
        assert lease_in(held[keys[0].public], name) == (ledger.lease_of(name)[:MOST_SPANS_LEASED], 7)
        assert lease_in(held[keys[0].public], name_of("stranger")) is None


def test_the_leases_of_a_thousand_peers_fit_the_records_of_the_swarm(keys):
    ledger, _ = ledger_of(1000)
    statements = signed_leases(keys[0], "a-swarm-with-a-long-name-generation-12", ledger, NOW)
    sizes = [len(MSGPackSerializer.dumps(statement.dict())) for statement in statements.values()]
    signed_by_hivemind = 400
    assert len(statements) == NUM_LEASE_KEYS and max(sizes) < MOST_BYTES - signed_by_hivemind, sizes
    told = sum(bool(lease.spans) for statement in statements.values() for lease in statement.leases)
    assert told > 900


def test_more_peers_than_fit_have_shorter_leases_and_all_are_named():
    spans = [[3, 11_000 + place, 15, 0, 511] for place in range(MOST_SPANS_LEASED)]
    leases = [PeerLease(name=name_of(number), booked_epoch=100_000, spans=spans) for number in range(60)]
    fitted = fitting(leases)
    assert [lease.name for lease in fitted] == [lease.name for lease in leases]
    assert len(MSGPackSerializer.dumps([lease.dict() for lease in fitted])) <= MOST_LEASE_BYTES
    assert 0 < len(fitted[0].spans) < MOST_SPANS_LEASED and fitting(leases[:5]) == leases[:5]


def test_forged_foreign_old_and_future_statements_do_not_count(keys):
    ledger, names = ledger_of(1)
    number = lease_key(names[0])
    good = signed_leases(keys[0], "swarm", ledger, NOW)[number]
    listed = [keys[0].public]
    assert valid_leases([good], number, "swarm", listed, NOW)
    changed = good.copy(update={"leases": [good.leases[0].copy(update={"booked_epoch": 99})]})
    for record, key_number, swarm, known, now in (
        (changed, number, "swarm", listed, NOW),
        (good.copy(update={"time": NOW + 1}), number, "swarm", listed, NOW),
        (good, (number + 1) % NUM_LEASE_KEYS, "swarm", listed, NOW),
        (good, number, "swarm-generation-1", listed, NOW),
        (good, number, "swarm", [keys[1].public], NOW),
        (good.copy(update={"publisher_key": keys[1].public}), number, "swarm", [keys[1].public], NOW),
        (good, number, "swarm", listed, NOW - 60),
        (good, number, "swarm", listed, NOW + 120),
    ):
        assert valid_leases([record], key_number, swarm, known, now) == {}


def test_the_newest_statement_of_each_anchor_counts(keys):
    ledger, names = ledger_of(1)
    number = lease_key(names[0])
    records = [signed_leases(key, "swarm", ledger, NOW + later)[number] for key in keys for later in (2, 1)]
    held = valid_leases(records, number, "swarm", [key.public for key in keys], NOW + 2)
    assert {record.time for record in held.values()} == {NOW + 2} and len(held) == 2


def test_the_fullest_report_fits_a_record():
    spans = [Span(7, 12_000, 16, 256 * place, 256 * place + 255) for place in range(MOST_SPANS_REPORTED // 32)]
    record = trained_record({100_000 + epoch: spans for epoch in range(MOST_EPOCHS_REPORTED)})
    assert len(MSGPackSerializer.dumps(record.dict())) < MOST_BYTES - 400


def test_the_most_that_is_signed_of_gradients_fits_a_record():
    spans = tuple(Span(70_000, 70_000, 70_000, 70_000, 70_000) for _ in range(MOST_GRADIENT_SPANS // MOST_GRADIENTS))
    gradient = BatchGradient(model_epoch=100_000, spans=spans, num_batches=300, sketch=(0.1,) * 8)
    record = gradients_record({100_001: [gradient] * MOST_GRADIENTS})
    assert len(MSGPackSerializer.dumps(record.dict())) < MOST_BYTES - 400
    GradientsRecord.parse_obj(record.dict())


@pytest.mark.parametrize("sketch", [[1.0] * 7, [1.0] * 7 + [float("nan")], [1.0] * 7 + [1e300], [1.0] * 7 + ["1"]])
def test_a_sketch_that_is_none_does_not_pass_the_schema(sketch):
    fields = dict(epoch=1, model_epoch=0, spans=[[0, 0, 0, 0, 1]], num_batches=1)
    GradientsRecord.parse_obj(dict(gradients=[fields | dict(sketch=[1.0] * 8)]))
    with pytest.raises(ValueError):
        GradientsRecord.parse_obj(dict(gradients=[fields | dict(sketch=sketch)]))


@pytest.mark.parametrize(
    "spans", [[[0, 0, 0, 0]], [[0, 0, 0, 0, 1, 1]], [[0, 0, 0, -1, 1]], [[0, 0, 0, 0, 2**40]], [["a", 0, 0, 0, 1]]]
)
def test_spans_that_are_none_do_not_pass_the_schema(spans):
    with pytest.raises(ValueError):
        TrainedRecord.parse_obj(dict(epochs=[dict(epoch=1, spans=spans)]))
    with pytest.raises(ValueError):
        LeaseRecord.parse_obj(
            dict(publisher_key="k", time=1.0, signature="", leases=[dict(name="0" * 16, booked_epoch=0, spans=spans)])
        )
    assert spans_in([[0, 0, 0, 5, 5], [0, 0, 0, 9, 3], [0, 0, 0, 3, 9]]) == [Span(0, 0, 0, 3, 9)]


def test_names_made_up_for_one_key_are_not_more_than_a_record_holds():
    leases = [PeerLease(name=f"{number:016x}", booked_epoch=0, spans=[[0, 0, 0, 0, 1]] * 9) for number in range(2000)]
    fitted = fitting(leases)
    assert LeaseRecord(publisher_key="", time=0.0, leases=fitted, signature="").leases[0].name == leases[0].name
