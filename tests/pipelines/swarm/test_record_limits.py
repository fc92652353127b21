"""What a node of a run refuses to store: large, long-lived, ownerless and impossible records, and floods of them."""

import asyncio
import math

import pytest
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.p2p import P2P, ServicerBase
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey

from pipelines.swarm import record_limits
from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import open_dht, visible_addresses
from pipelines.swarm.record_limits import BoundedStorage, ProgressBounds, RecordLimits
from pipelines.swarm.records import SwarmRecords

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

OWNER = RSASignatureValidator(RSAPrivateKey()).local_public_key
PEER = b"\x12\x20" + bytes(32)
packed = DHTProtocol.serializer.dumps
LIMITS = RecordLimits(frozenset({"run_metrics", "run_progress"}))


def record(key="run_metrics", subkey=packed(OWNER), value=b"x", seconds=60.0):
    return DHTRecord(DHTID.generate(source=key).to_bytes(), subkey, value, get_dht_time() + seconds)


@pytest.mark.parametrize(
    ("what", "is_stored"),
    [
        (dict(), True),
        (dict(value=bytes(8192)), True),
        (dict(value=bytes(8193)), False),
        (dict(seconds=86_400.0), True),
        (dict(seconds=2 * 86_400.0), False),
        (dict(seconds=math.inf), False),
        (dict(seconds=math.nan), False),
        (dict(subkey=DHTProtocol.IS_REGULAR_VALUE), False),
        (dict(subkey=DHTProtocol.IS_DICTIONARY), False),
        (dict(subkey=packed(OWNER + b"1")), False),
        (dict(subkey=packed(b"1" + OWNER)), False),
        (dict(subkey=packed(OWNER + OWNER)), False),
        (dict(subkey=packed(OWNER.decode())), False),
        (dict(subkey=packed(b"nobody")), False),
        (dict(subkey=b"\xc1"), False),
        (dict(subkey=packed(b"[owner:" + bytes(100_000) + b"]")), False),
        (dict(key="run_grad_averager.0b", subkey=packed(PEER)), True),
        (dict(key="run_grad_averager_7.0b", subkey=packed(PEER)), True),
        (dict(key="run_grad_averager.0b", subkey=packed(PEER), value=bytes(65)), False),
        (dict(key="run_grad_averager.0b", subkey=packed(PEER), seconds=3600.0), False),
        (dict(key="run_grad_averager.0b", subkey=packed(bytes(100_000))), False),
        (dict(key="run_grad_averager.0b", subkey=packed(b"")), False),
        (dict(key="run_grad_averager.0b", subkey=packed([1] * 9)), False),
        (dict(key="run_grad_averager.0b", subkey=DHTProtocol.IS_REGULAR_VALUE), False),
        (dict(key="anything", subkey=DHTProtocol.IS_REGULAR_VALUE), False),
    ],
)
def test_a_record_is_small_mortal_and_its_owners_only_one(what, is_stored):
    assert LIMITS.validate(record(**what)) is is_stored


def test_two_runs_on_one_node_have_the_limits_of_both():
    both = CompositeValidator([RecordLimits(frozenset({"a_metrics"})), RecordLimits(frozenset({"b_metrics"}))])
    assert both.validate(record(key="a_metrics")) and both.validate(record(key="b_metrics"))
    assert not both.validate(record(key="a_metrics", subkey=packed(PEER)))


@pytest.mark.parametrize(
    ("change", "is_stored"),
    [
        (dict(), True),
        (dict(epoch=2**60), False),
        (dict(samples_accumulated=2**60), False),
        (dict(samples_per_second=math.inf), False),
        (dict(samples_per_second=math.nan), False),
        (dict(time=math.nan), False),
        (dict(time=-math.inf), False),
        (dict(time=0.0), False),
        (dict(time=1e12), False),
        (dict(peer_id=bytes(1000)), False),
    ],
)
def test_progress_is_possible(change, is_stored):
    progress = dict(
        peer_id=PEER, epoch=3, samples_accumulated=8, samples_per_second=9.0, time=get_dht_time(), client_mode=False
    )
    found = record(key="run_progress", value=packed(progress | change))
    assert ProgressBounds("run_progress").validate(found) is is_stored
    assert ProgressBounds("run_progress").validate(record(key="run_progress", value=packed(None)))


def test_a_flood_of_owners_and_keys_ends_at_a_bound_and_what_is_there_is_renewed(monkeypatch):
    monkeypatch.setattr(record_limits, "MOST_OWNERS", 3)
    monkeypatch.setattr(record_limits, "MOST_KEYS", 2)
    storage, now = BoundedStorage(), get_dht_time()
    first, second, third = (DHTID.generate(source=name) for name in ("first", "second", "third"))
    assert all(storage.store_subkey(first, owner, b"1", now + 60) for owner in (b"a", b"b", b"c"))
    assert not storage.store_subkey(first, b"d", b"1", now + 600)
    assert storage.store_subkey(first, b"a", b"2", now + 61)
    assert storage.store_subkey(second, b"a", b"1", now + 60)
    assert not storage.store_subkey(third, b"a", b"1", now + 60)
    assert sorted(storage.get(first).value.data) == [b"a", b"b", b"c"]


def test_a_record_that_is_renewed_a_thousand_times_takes_the_room_of_one_and_lasts_as_long_as_the_newest():
    storage, key, now = BoundedStorage(), DHTID.generate(source="renewed"), get_dht_time()
    plain = DHTID.generate(source="plain")
    for number in range(1000):
        assert storage.store_subkey(key, b"owner", b"%d" % number, now + 60 + number)
        assert storage.store(plain, b"%d" % number, now + 60 + number)
    owners = storage.get(key).value
    assert len(storage.expiration_heap) + len(owners.expiration_heap) < 3 * record_limits.MOST_SPARE_RENEWALS
    assert owners.get(b"owner") == (b"999", now + 1059) and storage.get(plain) == (b"999", now + 1059)
    assert storage.top()[1].expiration_time == now + 1059


def test_a_stranger_squats_no_key_of_a_run():
    """Seen before: one plain value under the key of the groups, valid for years, and no round came about any more."""
    group, now = "run_grad_averager.0b", get_dht_time()
    with open_dht("run", (), NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",)), admission=None) as node:
        SwarmRecords(node, "run", admission=None).open()
        squatting = [
            record(key=key, subkey=subkey, value=packed(True), seconds=seconds)
            for key in (group, "run_progress")
            for subkey, seconds in (
                (DHTProtocol.IS_REGULAR_VALUE, 1e8), (DHTProtocol.IS_REGULAR_VALUE, 60.0), (packed(PEER), 1e8),
                (packed(bytes(100_000)), 60.0),
            )
        ]  # fmt: skip
        honest = record(key=group, subkey=packed(PEER), value=packed(True))
        assert asyncio.run(stored(node, [*squatting, honest])) == [False] * len(squatting) + [True]
        found = node.get(group, latest=True)
        assert list(found.value) == [PEER] and found.expiration_time < now + 120
        assert node.get("run_progress", latest=True) is None


def test_an_invalid_record_hides_no_others_from_a_reader_nor_from_a_node_that_stores():
    group, options = "run_grad_averager.0b", NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    with open_dht("run", (), options, admission=None) as careless:  # without schemas it stores anything
        with open_dht("run", visible_addresses(careless), options, admission=None) as writer:
            honest = SwarmRecords(writer, "run", admission=None).open()
            progress = LocalTrainingProgress(
                peer_id=PEER, epoch=3, samples_accumulated=8, samples_per_second=9.0, time=get_dht_time(),
                client_mode=False,
            )  # fmt: skip
            assert writer.store("run_progress", progress.dict(), get_dht_time() + 60, subkey=honest.owner)
        unsigned = record(key="run_progress", value=packed(progress.dict()))
        assert asyncio.run(stored(careless, [unsigned])) == [True]
        with open_dht("run", visible_addresses(careless), options, admission=None) as reader:
            assert SwarmRecords(reader, "run", admission=None).open().trainers() == {honest.owner}
            both = DictionaryDHTValue()
            both.store(PEER, packed(True), get_dht_time() + 60)
            both.store(PEER[:-1] + b"1", packed("x" * 100), get_dht_time() + 60)
            declared = record(key=group, subkey=DHTProtocol.IS_DICTIONARY, value=packed(both))
            assert asyncio.run(stored(reader, [declared])) == [True]
            assert list(reader.get(group, latest=True).value) == [PEER]


async def stored(node, records):
    """Ask a node to store records, as another node would; return which it takes."""
    p2p = await P2P.create(initial_peers=visible_addresses(node))
    try:
        request = dht_pb2.StoreRequest(
            keys=[r.key for r in records], subkeys=[r.subkey for r in records], values=[r.value for r in records],
            expiration_time=[r.expiration_time for r in records], in_cache=[False] * len(records),
        )  # fmt: skip
        return list((await ServicerBase.get_stub.__func__(DHTProtocol, p2p, node.peer_id).rpc_store(request)).store_ok)
    finally:
        await p2p.shutdown()
