"""How one machine is connected: what its node in the swarm listens on, announces, and may send."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Local choices of one node."""

    host_addresses: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
    """Multiaddresses to listen on; one that this machine lacks is left out if another is there. On one machine:
    `/ip4/127.0.0.1/tcp/0`."""

    announce_addresses: tuple[str, ...] = ()
    """Multiaddresses to announce, if they differ from those listened on (port forwarding)."""

    client_mode: bool = False
    """Do not accept connections: for machines behind a firewall. Others then do the averaging."""

    use_relay: bool = False
    """Ask peers with public addresses to relay connections to this one, behind a router that lets none in."""

    identity_file: Path | None = None
    """File with the node's libp2p key; created if missing. Keeps the node's peer ID across restarts."""

    bandwidth_limit_mbit: float | None = None
    """Upload limit in Mbit/s; None: no limit. Others then send this peer less to average."""

    startup_timeout_seconds: float = 90.0
    """Time for the libp2p daemon to start; increase on a busy machine."""

    def __post_init__(self) -> None:
        for name in ("bandwidth_limit_mbit", "startup_timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; expected a number above 0.")
        if self.use_relay and self.client_mode:
            raise ValueError(
                "client_mode accepts no connections, but use_relay is for accepting them. Choose one of "
                "--client-mode and --relay."
            )
