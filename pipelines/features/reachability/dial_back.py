"""Peers that call others back: the only way to learn whether a peer can be reached from outside.

A ping over the connection that the asking peer has opened itself proves nothing, because libp2p uses that connection
in both directions. So the asked peer opens a new TCP connection, only ever to the asking machine.
"""

import asyncio
import time

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils import MSGPackSerializer

from pipelines.core.admission.protocol_names import NamedServicer
from pipelines.core.swarm.dialling import PeerAddress, parse_address
from pipelines.features.reachability.tcp_calls import Call, call

MOST_ADDRESSES = 4
CALL_SECONDS = 5.0
SECONDS_BETWEEN_CALLS = 2.0
"""A machine is called at most this often, whoever asks."""

MOST_REMEMBERED = 1024


class DialBack(NamedServicer):
    """Calls a peer's listening ports at the address that the peer is connected from.

    Nobody can use it to reach a third machine: libp2p sees the host, and the asking peer chooses only the port.
    """

    PROTOCOL_NAME = "DialBack"

    def __init__(self, p2p: P2P) -> None:
        self._p2p = p2p
        self._last_calls: dict[str, float] = {}

    async def rpc_dial_back(
        self, request: runtime_pb2.ExpertRequest, context: P2PContext
    ) -> runtime_pb2.ExpertResponse:
        """Answer with the address seen and, for each requested address, the result of the call."""
        addresses = _requested_addresses(request.metadata)
        seen = await seen_address(self._p2p, context.remote_id)
        if seen is None or not self._may_call(seen.host):
            return _reply(seen, [])
        own = [_at_host(address, seen) for address in addresses]
        calls = await asyncio.gather(*(call(address, CALL_SECONDS) for address in own if address is not None))
        return _reply(seen, list(calls))

    def _may_call(self, host: str) -> bool:
        now = time.monotonic()
        self._last_calls = {h: t for h, t in self._last_calls.items() if now - t < SECONDS_BETWEEN_CALLS}
        if host in self._last_calls or len(self._last_calls) >= MOST_REMEMBERED:
            return False
        self._last_calls[host] = now
        return True


def offer_dial_back(dht: hivemind.DHT) -> None:
    """Let other peers ask this one whether they can be reached, unless it is a client; it ends with the DHT node."""
    if not dht.client_mode:
        dht.run_coroutine(_offer)


async def ask_for_dial_back(
    p2p: P2P, peer: PeerID, addresses: list[str], timeout: float
) -> tuple[str, list[Call]] | None:
    """Ask a peer to call these addresses of ours; return how it sees us, and the calls, or None if it does not answer.

    An empty list of calls: the peer calls nobody at the moment, or sees us through a relay.
    """
    request = runtime_pb2.ExpertRequest(metadata=MSGPackSerializer.dumps(addresses[:MOST_ADDRESSES]))
    try:
        reply = await DialBack.get_stub(p2p, peer).rpc_dial_back(request, timeout=timeout)
        return _read_reply(reply.metadata)
    except Exception:  # an older peer, a dead one, or one that answers nonsense: all the same here
        return None


async def seen_address(p2p: P2P, peer: PeerID) -> PeerAddress | None:
    """Return the address that a peer is directly connected from; None if only through a relay."""
    for info in await p2p.list_peers():
        if info.peer_id != peer:
            continue
        for text in map(str, info.addrs):
            try:
                address = parse_address(text)
            except ValueError:
                continue
            if not address.relayed:
                return address
    return None


async def _offer(_dht: hivemind.DHT, node: DHTNode) -> None:
    await DialBack(node.p2p).add_p2p_handlers(node.p2p)


def _requested_addresses(metadata: bytes) -> list[PeerAddress]:
    values = MSGPackSerializer.loads(metadata)
    if not isinstance(values, list) or len(values) > MOST_ADDRESSES:
        raise ValueError(f"Expected at most {MOST_ADDRESSES} addresses.")
    return [parse_address(value[:256]) for value in values if isinstance(value, str)]


def _at_host(address: PeerAddress, seen: PeerAddress) -> PeerAddress | None:
    """Return the address with the host that was seen, or None for another kind of address."""
    if address.kind != seen.kind or address.transport != "tcp" or address.port == 0:
        return None
    return parse_address(f"/{seen.kind}/{seen.host}/tcp/{address.port}")


def _reply(seen: PeerAddress | None, calls: list[Call]) -> runtime_pb2.ExpertResponse:
    values = [[one.address, one.outcome, one.detail, one.seconds or 0.0] for one in calls]
    return runtime_pb2.ExpertResponse(metadata=MSGPackSerializer.dumps([seen.text if seen else "", values]))


def _read_reply(metadata: bytes) -> tuple[str, list[Call]]:
    seen, values = MSGPackSerializer.loads(metadata)
    calls = [
        Call(address=str(address)[:256], outcome=str(outcome)[:32], detail=str(detail)[:256], seconds=float(seconds))
        for address, outcome, detail, seconds in values[:MOST_ADDRESSES]
    ]
    return str(seen)[:256], calls
