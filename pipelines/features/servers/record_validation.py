"""Which records count, for readers that are no node of the swarm: what a node's own validators and gates check."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from pydantic.v1 import BaseModel

from pipelines.core.admission.record_owners import key_of, speaks_for
from pipelines.core.admission.tokens import TokenCheck, TokenRefusedError
from pipelines.core.swarm.record_limits import MOST_BYTES

Record = TypeVar("Record", bound=BaseModel)

Entry = tuple[object, object, object]
"""Owner, values and token of a record; a stranger's may be anything."""


def valid_records(kind: type[Record], entries: Iterable[Any], check: TokenCheck, *, now: float) -> dict[bytes, Record]:
    """Return the records that count, by owner: those in which peers with a valid token speak for themselves."""
    found = {}
    for entry in entries:
        try:
            owner, values, token = entry
            record, admitted = kind.parse_obj(values), check.check(token, now, record_key=key_of(owner))
        except (TokenRefusedError, ValueError, TypeError, AttributeError):
            continue
        if speaks_for(record, admitted, names_user=bool(check.authority_key)):
            found[owner] = record
    return found


def signed_values(key: str, dictionary: Mapping[bytes, Any]) -> dict[bytes, object]:
    """Return what the owners of a DHT key's sub-keys have signed; `dictionary` is as another node has sent it."""
    signature, key_id, found = RSASignatureValidator(), DHTID.generate(source=key).to_bytes(), {}
    for owner, entry in dictionary.items():
        try:
            subkey = DHTProtocol.serializer.dumps(owner)
            record = DHTRecord(key_id, subkey, entry.value, entry.expiration_time)
            if len(entry.value) <= MOST_BYTES and signature.validate(record):
                found[owner] = DHTProtocol.serializer.loads(signature.strip_value(record))
        except Exception:  # whatever msgpack and the signature's parser make of a stranger's bytes
            continue
    return found
