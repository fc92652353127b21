"""Records and streams by the thousand, and answers that hide those of others, from the process of a hostile DHT node.

Coroutines for `hivemind.DHT.run_coroutine`: other nodes are asked to store, whatever this one checks.
"""

import asyncio
import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.serializer import MSGPackSerializer

from pipelines.core.admission.dht_gate import PeerBoundCalls, SwarmDHT
from pipelines.core.admission.record_owners import owner_of

MANY = 2048
AT_ONCE, STREAMS_AT_ONCE = 256, 100
LONG_SECONDS = 80_000.0
"""A little less than nodes store anything for."""

packed = MSGPackSerializer.dumps


async def store_everywhere(node: DHTNode, records: Sequence[DHTRecord], *, in_cache: bool = False) -> None:
    """Ask each node that this one knows to store these, some at a time."""
    for first in range(0, len(records), AT_ONCE):
        part = records[first : first + AT_ONCE]
        store = partial(
            node.protocol.call_store,
            keys=[DHTID.from_bytes(record.key) for record in part],
            values=[record.value for record in part],
            expiration_time=[record.expiration_time for record in part],
            subkeys=[MSGPackSerializer.loads(record.subkey) for record in part],
            in_cache=in_cache,
        )
        await asyncio.gather(*map(store, list(node.protocol.routing_table.peer_id_to_uid)))


async def open_silent_streams(dht: SwarmDHT, node: DHTNode, *, call: str) -> None:
    """Open streams for a call at each node that this one knows, keep them, and say nothing."""
    streams = node.__dict__.setdefault("silent_streams", [])
    peers = list(node.protocol.routing_table.peer_id_to_uid) if len(streams) < MANY else []
    opening = [node.p2p.call_binary_stream_handler(peer, call) for peer in peers for _ in range(STREAMS_AT_ONCE)]
    streams += await asyncio.gather(*opening, return_exceptions=True)


async def crowd(dht: SwarmDHT, node: DHTNode, *, key: str, searches: str) -> None:
    """Declare many peers that do not exist, without a signature, as peers of old versions do and as those of now."""
    until, records = get_dht_time() + 20.0, []
    for number in range(MANY):
        peer = b"\x12\x20" + number.to_bytes(32, "big")
        records.append(DHTRecord(_id(key), packed(peer), packed(True), until))
        if number < AT_ONCE:
            owner, value = owner_of(b"ssh-rsa " + b"%0372d" % number), packed(dict(peer_id=peer, is_looking=True))
            records.append(DHTRecord(_id(searches), packed(owner), value, until))
    await store_everywhere(node, records)


async def write_in_many_names(
    dht: SwarmDHT, node: DHTNode, *, key: str, progress: dict[str, object], private: RSAPrivateKey
) -> None:
    """Store the progress of many owners, whose key is one, with comments: signed once, for hours."""
    await store_everywhere(node, _in_many_names(key, packed(progress), packed(private.to_bytes())))


async def send_dear_tokens(
    dht: SwarmDHT, node: DHTNode, *, key: str, claims: Callable[[bytes], str], private: RSAPrivateKey
) -> None:
    """Store tokens whose check takes long, with a new text each time."""
    values = [packed(claims(os.urandom(8))) for _ in range(AT_ONCE)]
    until = get_dht_time() + 20.0
    owners = [_owner_with_comment(private, number) for number in range(AT_ONCE)]
    records = [_signed(private, key, *each, until) for each in zip(owners, values, strict=True)]
    await store_everywhere(node, records)


async def hide_others(
    dht: SwarmDHT, node: DHTNode, *, keys: Sequence[str], private: RSAPrivateKey, value: object
) -> None:
    """Answer every question with one record, for ever, and fill caches with it for hours."""
    owner, records = owner_of(private.get_public_key().to_bytes()), []
    for key in keys:
        records.append(_signed(private, key, owner, packed(value), get_dht_time() + LONG_SECONDS))
    await store_everywhere(node, records, in_cache=True)
    if hasattr(node, "hides"):
        return
    node.hides = True
    protocol, answers = node.protocol, {record.key: _answer(owner, record) for record in records}
    honest = protocol.rpc_find

    async def rpc_find(request: dht_pb2.FindRequest, context: object) -> dht_pb2.FindResponse:
        response = await honest(request, context)
        results = [answers.get(key, result) for key, result in zip(request.keys, response.results, strict=True)]
        return dht_pb2.FindResponse(results=results, peer=response.peer)

    protocol.rpc_find = rpc_find
    await protocol.remove_p2p_handlers(protocol.p2p)
    await protocol.add_p2p_handlers(protocol.p2p, PeerBoundCalls(protocol, dht.authorizer))


@cache
def dear_key() -> str:
    """Return the text of a public key, whose exponent makes a check take 30 to 50 times as long."""
    modulus = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n
    key = rsa.RSAPublicNumbers(modulus - 2, modulus).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


@lru_cache(maxsize=1)
def _in_many_names(key: str, value: bytes, private_der: bytes) -> list[DHTRecord]:
    private = RSAPrivateKey.__new__(RSAPrivateKey)
    private.__setstate__(dict(_private_key=MSGPackSerializer.loads(private_der)))
    until = get_dht_time() + LONG_SECONDS
    return [_signed(private, key, _owner_with_comment(private, number), value, until) for number in range(MANY)]


def _owner_with_comment(private: RSAPrivateKey, number: int) -> bytes:
    return owner_of(private.get_public_key().to_bytes() + b" %d" % number)


def _signed(private: RSAPrivateKey, key: str, owner: bytes, value: bytes, until: float) -> DHTRecord:
    record = DHTRecord(_id(key), packed(owner), value, until)
    signature = private.sign(packed(dataclasses.astuple(record)))
    return dataclasses.replace(
        record, value=value + RSASignatureValidator.SIGNATURE_FORMAT.replace(b"_value_", signature)
    )


def _answer(owner: bytes, record: DHTRecord) -> dht_pb2.FindResult:
    owners = DictionaryDHTValue()
    owners.store(owner, record.value, record.expiration_time)
    return dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=packed(owners), expiration_time=math.inf)


def _id(key: str) -> bytes:
    return DHTID.generate(source=key).to_bytes()
