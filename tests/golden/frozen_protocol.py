"""What peers of different versions must agree on: names of remote calls, DHT keys, schemas of records, signed texts."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from frozen_training import RUN_ID, lone_node, lone_optimizer
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.schema import SchemaValidator
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer
from huggingface_hub import HfApi
from parts import (
    AUXILIARIES,
    INTRODUCTIONS,
    METRICS,
    ROLES,
    SERVICE,
    STATES,
    Admission,
    AdmissionGate,
    AdmissionRecords,
    Announcement,
    AuxiliaryStatus,
    DialBack,
    KeyList,
    Misbehaviour,
    PacedKeyManager,
    PeerIntroduction,
    PeerMetrics,
    PublisherKey,
    RsaKey,
    ServerList,
    StateManifest,
    StateRecord,
    Suspect,
    SwarmDHT,
    SwarmRecords,
    TokenCheck,
    WeighedInput,
    access_token,
    admission_config_of,
    answer_statement,
    binding,
    candidacy,
    handler_name,
    initial_model,
    manifest_request,
    part_statement,
    peer_admission,
    receipt_statement,
    reduction_of,
    signed_bytes,
    signed_record,
    statement_of,
    suspect_record,
    tensors_request,
    tiny_run,
    token_of,
)

from hub_tools.publishing.account_proof import HubAccount
from pipelines.core.swarm.records import PROGRESS

SECONDS = 60.0
EPOCH = 7
DIGEST = "ab" * 32
PEER_ID = bytes.fromhex("1220" + DIGEST)
_MODULUS = b"\x80" + bytes(254) + b"\1"
RECORD_KEY = "ssh-rsa " + base64.b64encode(b"\0\0\0\7ssh-rsa\0\0\0\3\1\0\1\0\0\1\1\0" + _MODULUS).decode()
"""As one looks; nobody has its private half."""


def fixed_key() -> PublisherKey:
    """Return a key that signs the same thing in the same way every time."""
    return PublisherKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


class NotingDHT(SwarmDHT):
    """A DHT node that notes the keys that this process stores and asks for, and the schemas that records must fit."""

    def __init__(self, **kwargs: Any) -> None:
        self.keys: set[str] = set()
        self.schemas: dict[str, Any] = {}
        super().__init__(**kwargs)

    def store(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        self.keys.add(key)
        return super().store(key, *args, **kwargs)

    def get(self, key: Any, *args: Any, **kwargs: Any) -> Any:
        self.keys.add(key)
        return super().get(key, *args, **kwargs)

    def add_validators(self, record_validators: Any) -> None:
        for validator in record_validators:
            if isinstance(validator, SchemaValidator):
                self.schemas |= dict(_schemas(validator))
        super().add_validators(record_validators)


class NotingP2P:
    """Notes the remote calls that a libp2p node would be given to answer."""

    _client = SimpleNamespace(control=SimpleNamespace(_handler_tasks={}))

    def __init__(self) -> None:
        self.calls: dict[str, list[str]] = {}

    async def add_protobuf_handler(self, name: str, handler: Any, input_protobuf_type: Any, **options: Any) -> None:
        streams = [option for option in ("stream_input", "stream_output") if options.get(option)]
        self.calls[name] = [input_protobuf_type.DESCRIPTOR.full_name, *streams]

    async def add_binary_stream_handler(self, name: str, handler: Any, balanced: bool = False) -> None:
        """Do nothing: here no call gets so far."""


def protocol() -> dict[str, Any]:
    """Return the names and forms that a running peer shares with others."""
    run = tiny_run(run_id=RUN_ID)
    with lone_node(NotingDHT) as dht, lone_optimizer(dht, run, initial_model(run)) as (optimizer, records):
        averagers = dict(gradients=optimizer.averager, sparse=_sparse_averager(dht, optimizer))
        _use_all_records(records)
        _ask_who_is_admitted(dht)
        return dict(
            remote_calls=asyncio.run(_remote_calls(averagers.values())),
            group_keys={
                name: [_group_key(dht, averager.prefix, epoch) for epoch in (None, EPOCH)]
                for name, averager in averagers.items()
            },
            vector_schemas={name: averager.schema_hash.hex() for name, averager in averagers.items()},
            progress_key=optimizer.tracker.training_progress_key,
            keys_used=sorted(dht.keys),
            records=dht.schemas,
            offences=sorted(Misbehaviour.__members__),
            suspect=suspect_record(Suspect(peer_id="a", offence=Misbehaviour.FAR_OFF, num_rounds=1)).dict(),
            group_proof=_group_proof(),
            texts=_texts(),
        )


def _sparse_averager(dht: SwarmDHT, optimizer: Any) -> Any:
    """Return the averager of a run with sparse synchronisation; its process is not started."""
    run = tiny_run(local_steps=2, synchronisation="sparse", aggregation_rule="mean", outer_momentum=0)
    return reduction_of(run).averager(
        averaged_tensors=[torch.zeros_like(p) for p in optimizer.state.main_parameters], dht=dht, admission=None,
        prefix=optimizer.averager.prefix,
        min_matchmaking_time=1.0, start=False,
    )  # fmt: skip


async def _remote_calls(averagers: Any) -> dict[str, list[str]]:
    p2p = NotingP2P()
    for averager in averagers:
        await averager.add_p2p_handlers(p2p, namespace=averager.prefix)
    await DialBack(p2p).add_p2p_handlers(p2p)
    await ServerList(p2p, RUN_ID, TokenCheck(RUN_ID, "")).add_p2p_handlers(p2p)
    await DHTProtocol(_initialized_with_create=True).add_p2p_handlers(p2p)
    return dict(sorted(p2p.calls.items()))


def _group_key(dht: SwarmDHT, prefix: str, epoch: int | None) -> str:
    manager = PacedKeyManager(GroupKeyManager(dht, prefix, "", None), pause_seconds=1.0)
    manager.epoch = epoch
    return manager.current_key


def _use_all_records(records: SwarmRecords) -> None:
    figures = dict(
        epoch=1, loss=1.0, num_samples=1, samples_per_second=1.0, share_averaged=1.0, bytes_sent=0, num_rounds=0,
        round_seconds=0.0, num_refused_gradients=0,
    )  # fmt: skip
    who = dict(username="ann", client_mode=False, package_version="0")
    records.publish(METRICS, PeerMetrics(**figures, **who), SECONDS)
    records.publish(INTRODUCTIONS, PeerIntroduction(device="CPU", **who), SECONDS)
    records.publish(AUXILIARIES, AuxiliaryStatus(held_epoch=1, published_epoch=1, addresses=[]), SECONDS)
    records.publish(STATES, StateRecord(peer_id="a", epoch=1, digest=DIGEST, shares=True), SECONDS)
    records.read_dated(PROGRESS)
    records.trainers()


def _ask_who_is_admitted(dht: SwarmDHT) -> None:
    anything: Any = ...  # whoever has an admission asks for those of others
    AdmissionRecords(dht, RUN_ID, admission=anything).admitted([b"nobody"])


def _schemas(validator: SchemaValidator) -> Iterator[tuple[str, Any]]:
    (schema,) = validator._schemas
    for name, form in _form(schema.schema())["fields"].items():
        key = f"{RUN_ID}_{name}"
        assert validator._key_id_to_field_name[DHTID.generate(source=key).to_bytes()] == name
        yield key, form


def _form(schema: dict[str, Any]) -> Any:
    """Return a JSON schema without what says nothing about the record: titles, docstrings, names of classes."""
    definitions = schema.get("definitions", {})

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return plain(definitions[part["$ref"].rsplit("/", 1)[1]])
        if "allOf" in part and len(part["allOf"]) == 1:
            return plain(part["allOf"][0])
        if isinstance(part.get("properties"), dict):
            fields = {name: plain(field) for name, field in part["properties"].items()}
            return {"fields": fields, "required": part.get("required", [])}
        return {key: plain(value) for key, value in part.items() if key not in ("title", "description", "definitions")}

    return plain(schema)


def _admission(**values: Any) -> Admission:
    key = fixed_key().public
    return Admission(username="ann", run_id=RUN_ID, peer_id=PEER_ID.hex(), confirmed_at=1.0, key=key, **values)


def _group_proof() -> dict[str, Any]:
    """Return the form of what an admitted peer shows a group, whose signature is checked by the plain formula."""
    key = fixed_key().public
    run = tiny_run(run_id=RUN_ID, authorization_service="https://authority.example", authorization_key=key)
    peer = peer_admission(
        admission_config_of(run, "org/golden"), RsaKey(rsa.generate_private_key(65537, 2048)), HubAccount(HfApi())
    )
    public_key = peer.record_key.get_public_key()
    token = token_of(_admission(record_key=public_key.to_bytes().decode(), expires_at=1e11), fixed_key())
    peer._token.write(token)
    fields, dumps = [1.0, 0, b"data"], MSGPackSerializer.dumps
    proof = AdmissionGate(peer, "prefix", SECONDS).prove(dumps(fields), PeerID(PEER_ID))
    *shown, time, signature = MSGPackSerializer.loads(proof)
    digest = hashlib.sha256(dumps(fields)).hexdigest()
    signed = json.dumps(["prefix", PEER_ID.hex(), time, digest], separators=(",", ":"))
    return dict(
        is_signed=public_key.verify(b"dalle-collab 2 group\0" + signed.encode(), signature),
        fields=["token" if part == token else repr(part) for part in shown] + [type(time).__name__, "signature"],
        shows_token_as_username=access_token(peer).username == token,
        shows_record_key=access_token(peer).public_key == public_key.to_bytes(),
    )


def _texts() -> dict[str, str]:
    """Return what peers sign and send each other as text, made of fixed values."""
    key = fixed_key()
    token = token_of(_admission(record_key=RECORD_KEY, expires_at=2.0), key)
    keys = KeyList(serial=3).adding(key.public, ROLES, now=1).revoking(key.public, now=2).keeping(DIGEST)
    manifest = StateManifest(swarm_id=RUN_ID, epoch=EPOCH, tensors=(("parameter.0", "float32 (2, 3)", DIGEST),))
    anchor = signed_record(key, RUN_ID, epoch=EPOCH, digest=DIGEST, roster=["0" * 16], returns=False, time=1.5)
    peer, digest = PeerID(PEER_ID), bytes.fromhex(DIGEST)
    used = WeighedInput(sender=peer, declared=32.0, weight=16.5, digest=digest)
    return dict(
        admission_token=token,
        keys_of_a_peer=binding(RUN_ID, RECORD_KEY, RECORD_KEY, 1.5).decode(),
        anything=signed_bytes("purpose", "é", b"\x01", 1, 1.0, [None, True]).decode(),
        candidacy=candidacy(key, RUN_ID, b"owner").proof,
        publisher_keys=keys.signed(key, RUN_ID),
        part=part_statement(b"group", peer, peer, 3, 32, digest).decode(),
        answer=answer_statement(b"group", peer, 3, b"average", [used]).decode(),
        anchor=statement_of(anchor, RUN_ID).decode(),
        anchor_signature=anchor.signature,
        state_manifest=manifest.encode().decode(),
        state_digest=manifest.digest,
        state_service=handler_name(RUN_ID, SERVICE),
        manifest_request=manifest_request(DIGEST),
        tensors_request=tensors_request(DIGEST, [0, 2]),
        announcement=Announcement.of(b"contribution", {PeerID(PEER_ID): 32.0}).encode().hex(),
        receipt=receipt_statement(peer, digest, EPOCH).decode(),
    )
