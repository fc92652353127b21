"""What one machine may choose for itself; everything that peers must share is in `training_run`."""

from dataclasses import dataclass
from pathlib import Path

from hub_tools.checks import check_choice, check_counts, check_positive


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Local choices of one peer."""

    micro_batch_size: int | None = None
    """Samples per local step and device, without effect on the result; None: found by trying what memory and speed
    allow."""

    device: str = "cpu"
    """Torch device on which gradients are computed."""

    num_devices: int | None = None
    """Devices that compute gradients together as one peer: the GPUs from 0 on, or processes on the CPU; None: one."""

    precision: str = "auto"
    """What is computed in: `fp32`, `bf16`, or `fp16` with loss scaling; `auto` takes the best of the device.
    Parameters, their averages and what travels between peers are the same for all of them."""

    compile: str = "auto"
    """Compile the model with `torch.compile`: `on`, `off`, or `auto`, where it pays."""

    bandwidth_limit_mbit: float | None = None
    """Upload limit in Mbit/s; None: no limit. Others then send this peer less to average."""

    use_relay: bool = False
    """Ask peers with public addresses to pass connections on to this one, behind a router that lets none in."""

    max_hours: float | None = None
    """Leave the run, in good order, after this many hours."""

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
        check_counts(self, "micro_batch_size", "num_devices", "shuffle_buffer_size", "cpu_threads", "max_epochs")
        check_positive(self, "bandwidth_limit_mbit", "max_hours")
        check_choice("precision", self.precision, ("auto", "fp32", "bf16", "fp16"))
        check_choice("compile", self.compile, ("auto", "on", "off"))
        if self.use_relay and self.client_mode:
            raise ValueError(
                "client_mode accepts no connections, and use_relay is there to accept them. Choose one of "
                "--client-mode and --relay."
            )
