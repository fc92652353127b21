"""Who asks: a peer, and the address that it is connected from. Peer ids cost nothing, addresses do."""

from collections.abc import Hashable
from dataclasses import dataclass

from pipelines.core.swarm.dialling import parse_address

UNKNOWN = ""
"""The address of whoever comes through a relay: what libp2p then sees is the relay's."""


@dataclass(frozen=True)
class StreamClient:
    """Who takes something of a server."""

    peer: Hashable
    """libp2p has authenticated it."""

    address: str = UNKNOWN
    """An IPv4 address or an IPv6 /48 network; all peers whose address is `UNKNOWN` share one."""


def stream_client_of(peer: Hashable, remote: str) -> StreamClient:
    """Return who asks; `remote` is the multiaddress of the connection's other end, as libp2p sees it."""
    try:
        address = parse_address(remote)
    except ValueError:  # a kind of address that has no place of its own
        return StreamClient(peer)
    return StreamClient(peer) if address.relayed else StreamClient(peer, address.owner)
