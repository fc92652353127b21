"""Who serves the model, told to strangers: where the organiser lets everybody draw, but only members join the swarm.

A stranger is no node of the swarm, so it asks the entries. What these tell is checked as far as it can be: the run's
authority has admitted the peer and names its user. Figures are the entry's word; in its first message each server
proves to the stranger that it is the peer which was admitted.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import hivemind
from hivemind.dht import DHTNode
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from pipelines.core.admission.protocol_names import NamedServicer
from pipelines.core.admission.tokens import TokenCheck
from pipelines.core.swarm.dialling import parse_address
from pipelines.features.servers.record_validation import Entry, valid_records
from pipelines.features.servers.server_record import ServerRecord

MOST_TOLD = 128
"""Servers that a list names."""

MOST_BYTES = 2**20
SECONDS_KEPT = 3.0
"""So long a list is told again before the swarm is asked: strangers cost a node no more than one reader does."""

SECONDS_TO_ANSWER = 10.0


class ServerList(NamedServicer):
    """Tells anybody who serves the model; in the process of a DHT node."""

    PROTOCOL_NAME = "ServerList"

    def __init__(self, node: DHTNode, swarm_id: str, check: TokenCheck) -> None:
        self._node, self._keys, self._check = node, [f"{swarm_id}_servers", f"{swarm_id}_admissions"], check
        self._asking, self._told, self._told_at = asyncio.Lock(), b"", float("-inf")

    async def rpc_list_servers(
        self, request: runtime_pb2.ExpertRequest, context: P2PContext
    ) -> runtime_pb2.ExpertResponse:
        """Answer with the records of servers and their tokens, by owner."""
        async with self._asking:
            if time.monotonic() - self._told_at > SECONDS_KEPT:
                self._told, self._told_at = MSGPackSerializer.dumps(await self._read()), time.monotonic()
        return runtime_pb2.ExpertResponse(metadata=self._told)

    async def _read(self) -> list[Entry]:
        found = await self._node.get_many(self._keys, sufficient_expiration_time=float("inf"))
        servers, tokens = (_values(found[key]) for key in self._keys)
        entries: dict[bytes, Entry] = {o: (o, record, tokens.get(o)) for o, record in servers.items()}
        # Keys without an admission are free: they must take nobody's room.
        counted = valid_records(ServerRecord, entries.values(), self._check, now=get_dht_time())
        return [entries[owner] for owner in counted][:MOST_TOLD]


def offer_server_list(dht: hivemind.DHT, swarm_id: str, check: TokenCheck) -> None:
    """Let strangers ask this node who serves the model; it ends with the node. `check` is that of this peer's run."""
    dht.run_coroutine(partial(_offer, swarm_id, check))


async def ask_for_servers(p2p: P2P, entries: Sequence[str], check: TokenCheck) -> dict[bytes, ServerRecord]:
    """Return who serves, by public key, as the first entry says that answers; `entries` are multiaddresses.

    Raises:
        ConnectionError: none answers.
    """
    failure: Exception | None = None
    for peer in dict.fromkeys(parse_address(address).peer_id for address in entries):
        try:
            stub = ServerList.get_stub(p2p, PeerID.from_base58(peer))
            reply = await stub.rpc_list_servers(runtime_pb2.ExpertRequest(), timeout=SECONDS_TO_ANSWER)
            return believed(reply.metadata, check, now=get_dht_time())
        except (P2PDaemonError, P2PHandlerError, OSError, ValueError) as error:
            failure = error
    raise ConnectionError(
        f"No entry of this run tells strangers who serves its model ({len(entries)} asked: {failure}). Its "
        "organiser restarts them after a change of who_may_draw: dalle-collab run assist ORG/RUN --stay"
    ) from failure


def believed(told: bytes, check: TokenCheck, *, now: float) -> dict[bytes, ServerRecord]:
    """Return the records of a list that count: of peers that the authority has admitted, under their users' names.

    Raises:
        ValueError: it is no list.
    """
    if len(told) > MOST_BYTES:
        raise ValueError(f"A list of {len(told)} bytes; expected at most {MOST_BYTES}.")
    try:
        entries = MSGPackSerializer.loads(told)
    except Exception as error:  # whatever msgpack makes of a stranger's bytes
        raise ValueError("What was told is no list of servers.") from error
    if not isinstance(entries, list) or len(entries) > MOST_TOLD:
        raise ValueError("What was told is no list of servers.")
    return valid_records(ServerRecord, entries, check, now=now)


def _values(found: Any) -> Mapping[bytes, Any]:
    values = found.value if found is not None and isinstance(found.value, dict) else {}
    return {owner: entry.value for owner, entry in values.items() if entry.value is not None}


async def _offer(swarm_id: str, check: TokenCheck, _dht: hivemind.DHT, node: DHTNode) -> None:
    await ServerList(node, swarm_id, check).add_p2p_handlers(node.p2p)
