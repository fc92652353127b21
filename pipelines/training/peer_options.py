"""What one machine may choose for itself; everything that peers must share is in `training_run`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Local choices of one peer."""

    micro_batch_size: int = 4
    """Samples per local step; limited by the device's memory, without effect on the result."""

    device: str = "cpu"
    """Torch device on which gradients are computed."""

    host_addresses: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddresses to listen on. On one machine: `/ip4/127.0.0.1/tcp/0`."""

    announce_addresses: tuple[str, ...] = ()
    """Multiaddresses to tell others, if they differ from those listened on (port forwarding)."""

    client_mode: bool = False
    """Do not accept connections: for machines behind a firewall. Others then do the averaging."""

    identity_file: Path | None = None
    """File with the peer's libp2p key; created if missing. Keeps the peer's address over restarts."""

    startup_timeout_seconds: float = 90.0
    """Time for the libp2p daemon to start; increase on a busy machine."""

    cpu_threads: int | None = None
    """Threads for torch; default: all cores."""

    shuffle_buffer_size: int = 2048
    """Records held for shuffling."""

    max_epochs: int | None = None
    """Leave the run after this many epochs of one's own."""

    def __post_init__(self) -> None:
        if self.micro_batch_size < 1:
            raise ValueError(f"micro_batch_size is {self.micro_batch_size}; expected at least 1.")
        if self.shuffle_buffer_size < 1:
            raise ValueError(f"shuffle_buffer_size is {self.shuffle_buffer_size}; expected at least 1.")
        if self.cpu_threads is not None and self.cpu_threads < 1:
            raise ValueError(f"cpu_threads is {self.cpu_threads}; expected at least 1.")
        if self.max_epochs is not None and self.max_epochs < 1:
            raise ValueError(f"max_epochs is {self.max_epochs}; expected at least 1.")
