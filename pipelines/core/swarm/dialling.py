"""Parsing multiaddresses, and telling a libp2p daemon of them."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.core.admission.settings import network_of

if TYPE_CHECKING:  # who only parses need not have hivemind
    from hivemind.p2p import P2P, PeerID
    from hivemind.utils.multiaddr import Multiaddr

KINDS = ("ip4", "ip6", "dns4", "dns6", "dns")


@dataclass(frozen=True, kw_only=True)
class PeerAddress:
    """A multiaddress such as `/ip4/203.0.113.7/tcp/31337/p2p/12D3Koo...`."""

    text: str

    kind: str
    """`ip4`, `ip6`, `dns4`, `dns6` or `dns`."""

    host: str
    transport: str
    """`tcp` or `udp`."""

    port: int

    peer_id: str
    """Empty if the address names no peer."""

    relayed: bool
    """Whether it goes through another peer."""

    @property
    def without_peer(self) -> str:
        """Return the address up to the port."""
        return f"/{self.kind}/{self.host}/{self.transport}/{self.port}"

    @property
    def is_private(self) -> bool:
        """Tell whether only machines of the same network, or only this one, can use the address."""
        return self.kind in ("ip4", "ip6") and not ipaddress.ip_address(self.host).is_global

    @property
    def owner(self) -> str:
        """Return whose it is; see `network_of`."""
        return network_of(self.host)

    @property
    def place(self) -> str:
        """Return what addresses of one place have in common: the /24 or /48 network, or the name."""
        if self.kind not in ("ip4", "ip6"):
            return self.host.lower()
        prefix = 24 if self.kind == "ip4" else 48
        return str(ipaddress.ip_network(f"{self.host}/{prefix}", strict=False))


def parse_address(text: str) -> PeerAddress:
    """Parse a multiaddress; raises ValueError that says what is wrong with it."""
    parts = text.split("/")
    malformed = ValueError(f"{text!r} is not an address; expected /ip4/HOST/tcp/PORT/p2p/PEER_ID.")
    if len(parts) < 5 or parts[0] or parts[1] not in KINDS or parts[3] not in ("tcp", "udp"):
        raise malformed
    if not parts[4].isdigit() or not 0 <= int(parts[4]) < 2**16:
        raise malformed
    if parts[1] in ("ip4", "ip6"):
        version = ipaddress.IPv4Address if parts[1] == "ip4" else ipaddress.IPv6Address
        try:
            version(parts[2])
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address: {error}.") from error
    rest = parts[5:]
    relayed = "p2p-circuit" in rest
    peers = [rest[i + 1] for i, part in enumerate(rest[:-1]) if part == "p2p"]
    return PeerAddress(
        text=text, kind=parts[1], host=parts[2], transport=parts[3], port=int(parts[4]),
        peer_id=peers[-1] if peers else "", relayed=relayed,
    )  # fmt: skip


async def connect(p2p: "P2P", peer: "PeerID", addresses: "Sequence[Multiaddr]") -> None:
    """Have a libp2p daemon connect to a peer at these multiaddresses, which hivemind does only as it starts one.

    Raises:
        ControlFailure: no address leads to that peer.
    """
    await p2p._client.connect(peer, list(addresses))
