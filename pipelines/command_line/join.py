"""`dalle-collab join`: give GPU time to a training run."""

from pathlib import Path
from typing import Annotated

import typer


def join(
    repository: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Model Hub repository of the run.")],
    micro_batch_size: Annotated[int, typer.Option(help="Samples per local step; as many as memory allows.")] = 4,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    client_mode: Annotated[bool, typer.Option("--client-mode", help="Accept no connections (firewall).")] = False,
    host: Annotated[list[str] | None, typer.Option(help="Multiaddress to listen on; may be repeated.")] = None,
    announce: Annotated[list[str] | None, typer.Option(help="Multiaddress to tell others (port forwarding).")] = None,
    identity_file: Annotated[Path | None, typer.Option(help="Key that keeps the peer's address; is created.")] = None,
    cpu_threads: Annotated[int | None, typer.Option(help="Threads for computing; default: all cores.")] = None,
    shuffle_buffer: Annotated[int, typer.Option(help="Records held for shuffling.")] = 2048,
    max_epochs: Annotated[int | None, typer.Option(help="Leave after this many epochs.")] = None,
    startup_timeout: Annotated[float, typer.Option(help="Seconds for the libp2p daemon to start.")] = 90.0,
    events: Annotated[Path | None, typer.Option(help="Append one JSON line per epoch to this file.")] = None,
) -> None:
    """Join a training run with nothing but its name.

    Everything else is read from the run's repository. Ctrl-C leaves the run in good order; a second one at once.

    Examples:

      dalle-collab join my-org/birds

      dalle-collab join my-org/birds --micro-batch-size 16 --device cuda

      dalle-collab join my-org/birds --client-mode
    """
    from pipelines.command_line import peers
    from pipelines.training.peer_options import PeerOptions

    options = PeerOptions(
        micro_batch_size=micro_batch_size,
        device=device,
        host_addresses=tuple(host or PeerOptions.host_addresses),
        announce_addresses=tuple(announce or ()),
        client_mode=client_mode,
        identity_file=identity_file,
        startup_timeout_seconds=startup_timeout,
        cpu_threads=cpu_threads,
        shuffle_buffer_size=shuffle_buffer,
        max_epochs=max_epochs,
    )
    peers.run_training_peer(repository, options, events=events)
