"""What a node of a run refuses to store: large, long-lived, ownerless and impossible records, and floods of them."""

import asyncio
import math
from contextvars import copy_context
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.timed_storage import ValueWithExpiration

from pipelines.core.admission.dht_gate import CALLER
from pipelines.core.swarm import record_limits
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.core.swarm.record_limits import (
    BoundedStorage,
    ProgressBounds,
    RecordLimits,
    find_bounded,
    keep_places,
    sender_name,
)
from pipelines.core.swarm.records import SwarmRecords

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")

OWNER = RSASignatureValidator(RSAPrivateKey()).local_public_key
KEPT = OWNER[:-1]
PEER = b"\x12\x20" + bytes(32)
CROWD, HONEST = PeerID(PEER), PeerID(b"\x12\x20" + b"honest".rjust(32))
packed = DHTProtocol.serializer.dumps
LIMITS = RecordLimits(frozenset({"run_metrics", "run_progress"}))
SEARCHES = "run_grad_averager_searches"


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
        (dict(subkey=packed(KEPT + b" comment" + OWNER[-1:])), False),
        (dict(subkey=packed(KEPT + b"\n" + OWNER[-1:])), False),
        (dict(subkey=packed(KEPT + b"==" + OWNER[-1:])), False),
        (dict(subkey=packed(OWNER.replace(b"ssh-rsa ", b"ssh-rsa  "))), False),
        (dict(subkey=packed(OWNER.replace(b"ssh-rsa", b"SSH-RSA"))), False),
        (dict(subkey=packed(OWNER.replace(b"ssh-rsa AAAA", b"ssh-rsa AAAB"))), False),
        (dict(key="run_grad_averager.0b", subkey=packed(PEER), value=packed(True)), False),
        (dict(key="anything", subkey=packed(OWNER)), False),
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


def test_a_caller_brings_few_owners_and_leaves_room_for_those_of_others():
    storage, key, now = BoundedStorage(), DHTID.generate(source="crowded"), get_dht_time()

    def bring(caller, owner):
        CALLER.set(caller)
        return storage.store_subkey(key, owner, b"1", now + 60)

    in_a_context = copy_context().run
    brought = [
        in_a_context(bring, CROWD, b"%d" % number) for number in range(2 * record_limits.MOST_OWNERS_OF_A_CALLER)
    ]
    assert brought == [number < record_limits.MOST_OWNERS_OF_A_CALLER for number in range(len(brought))]
    assert in_a_context(bring, HONEST, b"owner") and in_a_context(bring, CROWD, b"owner") is False
    assert storage.store_subkey(key, b"own", b"1", now + 60) and storage.store_subkey(key, b"0", b"2", now + 61)


def test_a_flood_of_newcomers_leaves_a_place_to_a_peer_that_trained_under_every_key():
    """Seen before: 128 peers with 16 owners each fill a key, and who trains is not found when it looks for a group."""
    storage, now = BoundedStorage(), get_dht_time()
    trained, newcomer = PeerID(PEER), PeerID(b"\x12\x20" + b"new".rjust(32))
    asyncio.run(keep_places({sender_name(trained.to_base58())}, None, node_with(storage)))

    def bring(caller, key, owner):
        CALLER.set(caller)
        return storage.store_subkey(DHTID.generate(source=key), owner, b"1", now + 60)

    in_a_context = copy_context().run
    crowd = [PeerID(b"\x12\x20" + number.to_bytes(32, "big")) for number in range(1, 129)]
    num_stored = sum(
        in_a_context(bring, peer, SEARCHES, b"%d of %d" % (number, place))
        for place, peer in enumerate(crowd)
        for number in range(record_limits.MOST_OWNERS_OF_A_CALLER)
    )
    assert num_stored == record_limits.MOST_OWNERS - record_limits.PLACES_OF_THE_KNOWN
    assert not in_a_context(bring, newcomer, SEARCHES, b"newcomer")
    assert in_a_context(bring, trained, SEARCHES, b"trained") and storage.store_subkey(
        DHTID.generate(source=SEARCHES), b"own", b"1", now + 60
    )


def node_with(storage):
    return SimpleNamespace(protocol=SimpleNamespace(storage=storage))


def test_what_a_search_finds_elsewhere_is_not_stored():
    storage, key, now = BoundedStorage(), DHTID.generate(source="found"), get_dht_time()
    assert storage.store_subkey(key, b"a", b"1", now + 60)
    storage.get(key).value.store(b"b", b"1", now + 60)
    assert list(storage.get(key).value.data) == [b"a"]


@pytest.mark.parametrize("maxsize", [1, 0.0, math.nan, "many"])
def test_an_answer_lasts_as_long_as_its_records_and_is_as_large_as_it_is(maxsize):
    key, now, owners = DHTID.generate(source="asked"), get_dht_time(), DictionaryDHTValue()
    for owner in (b"a", b"b"):
        owners.store(owner, b"1", now + 60)
    owners.maxsize = maxsize

    async def find(peer, keys):
        return {key: (ValueWithExpiration(owners, math.inf), dict.fromkeys(range(10_000)))}

    (found, nearest) = asyncio.run(find_bounded(find, b"peer", [key]))[key]
    assert list(found.value.data) == [b"a", b"b"] and found.value.maxsize == math.inf
    assert found.expiration_time == now + 60 and len(nearest) == record_limits.MOST_NEIGHBOURS


def test_who_answers_with_invalid_records_is_not_read_to_the_end():
    owners, looked_at = DictionaryDHTValue(), []
    for number in range(1000):
        owners.store(number, b"1", get_dht_time() + 60)

    def judge(key, owner, value, expiration_time):
        looked_at.append(owner)
        raise RecursionError

    protocol = SimpleNamespace(_validate_record=judge, serializer=DHTProtocol.serializer)
    assert record_limits.without_invalid(protocol, b"key", owners) and not owners.data
    assert len(looked_at) == record_limits.MOST_INVALID


def test_a_stranger_squats_no_key_of_a_run():
    """Seen before: one plain value under the key of the groups, valid for years, and no round came about any more."""
    search = dict(peer_id=PEER, is_looking=True)
    with open_dht("run", (), NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",)), admission=None) as node:
        honest = SwarmRecords(node, "run", admission=None).open()
        squatting = [
            record(key=key, subkey=subkey, value=packed(value), seconds=seconds)
            for key in (SEARCHES, "run_grad_averager.0b", "run_progress")
            for value in (True, search)
            for subkey, seconds in (
                (DHTProtocol.IS_REGULAR_VALUE, 1e8), (DHTProtocol.IS_REGULAR_VALUE, 60.0), (packed(PEER), 60.0),
                (packed(OWNER), 60.0), (packed(bytes(100_000)), 60.0),
            )
        ]  # fmt: skip
        assert asyncio.run(stored(node, squatting)) == [False] * len(squatting)
        assert asyncio.run(stored(node, squatting, in_cache=True)) == [False] * len(squatting)
        assert node.store(SEARCHES, search, get_dht_time() + 60, subkey=honest.owner)
        assert list(node.get(SEARCHES, latest=True).value) == [honest.owner]
        assert node.get("run_progress", latest=True) is None


def test_a_valid_record_is_not_cached_and_hides_no_newer_ones():
    """A node answers from its cache what lasts longer there: a record of a day there would hide what is stored."""
    key, search = RSAPrivateKey(), dict(peer_id=PEER, is_looking=True)
    signer = RSASignatureValidator(key)
    plain = record(key=SEARCHES, subkey=packed(signer.local_public_key), value=packed(search), seconds=80_000.0)
    signed = replace(plain, value=signer.sign_value(plain))
    with open_dht("run", (), NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",)), admission=None) as node:
        SwarmRecords(node, "run", admission=None).open()
        assert asyncio.run(stored(node, [signed], in_cache=True)) == [False]
        assert asyncio.run(stored(node, [signed])) == [True]


def test_an_invalid_record_hides_no_others_from_a_reader_nor_from_a_node_that_stores():
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    search = dict(peer_id=PEER, is_looking=True)
    with open_dht("run", (), options, admission=None) as careless:  # without schemas it stores anything
        with open_dht("run", visible_addresses(careless), options, admission=None) as writer:
            honest = SwarmRecords(writer, "run", admission=None).open()
            assert writer.store(SEARCHES, search, get_dht_time() + 60, subkey=honest.owner)
        unsigned = record(key=SEARCHES, value=packed(search))
        assert asyncio.run(stored(careless, [unsigned])) == [True]
        with open_dht("run", visible_addresses(careless), options, admission=None) as reader:
            SwarmRecords(reader, "run", admission=None).open()
            assert list(reader.get(SEARCHES, latest=True).value) == [honest.owner]


async def stored(node, records, *, in_cache=False):
    """Ask a node to store records, as another node would; return which it takes."""
    p2p = await P2P.create(initial_peers=visible_addresses(node))
    try:
        request = dht_pb2.StoreRequest(
            keys=[r.key for r in records], subkeys=[r.subkey for r in records], values=[r.value for r in records],
            expiration_time=[r.expiration_time for r in records], in_cache=[in_cache] * len(records),
        )  # fmt: skip
        return list((await ServicerBase.get_stub.__func__(DHTProtocol, p2p, node.peer_id).rpc_store(request)).store_ok)
    finally:
        await p2p.shutdown()
