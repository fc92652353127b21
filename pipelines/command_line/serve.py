"""`dalle-collab serve`: draw a run's pictures or write its texts for others, or compute some of its layers."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.command_line.terminal import setting_options as shared


def serve(
    repository: shared.Run,
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16, or int8 (CPU, pictures); only float32 servers draw the same codes.")
    ] = "float32",
    blocks: Annotated[
        str | None,
        typer.Option(help="Serve only these layers, such as 0:16, or auto: those that help most. Default: drawings."),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB for clients' drawings or caches, besides the weights; default: half of what is free."),
    ] = None,
    max_codes_per_second: Annotated[
        float | None, typer.Option(help="Draw at most this many codes a second; default: no limit.")
    ] = None,
    ranking: Annotated[
        bool, typer.Option("--ranking", help="Also rank pictures for clients, with the run's CLIP.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name that clients see, in an open run; default: your Hub user name.")
    ] = None,
    device: shared.Device = "auto",
    relay: shared.Relay = False,
    bandwidth_limit: shared.BandwidthLimit = None,
    host: shared.Host = None,
    announce: shared.Announce = None,
    identity_file: shared.IdentityFile = None,
    cpu_threads: Annotated[int | None, typer.Option(help="Threads for computing; default: all cores.")] = None,
    max_hours: shared.MaxHours = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checks for a newer checkpoint.")] = 60.0,
    http: Annotated[
        int | None, typer.Option(help="Also draw for programs on this machine, over HTTP on this port; 0: any.")
    ] = None,
    startup_timeout: shared.StartupTimeout = 90.0,
    events: Annotated[Path | None, typer.Option(help="Append a JSON line per event to this file.")] = None,
) -> None:
    """Draw pictures or write texts for others with a run's newest checkpoint, or serve some of its layers.

    The run's name is all you need. Clients send a prompt's token ids and a seed, and get image codes or tokens. The run
    may be over: servers are found through its auxiliary peer, or through each other. Newer checkpoints are served as
    they are published. Ctrl-C finishes what has begun and leaves; a second one quits at once. SIGUSR1 pauses, SIGUSR2
    resumes. With --http, programs on this machine that speak OpenAI's interface for pictures or texts are served too;
    they need the key that is printed.

    Examples:

      dalle-collab serve my-org/birds

      dalle-collab serve my-org/birds --precision int8 --max-codes-per-second 200

      dalle-collab serve my-org/birds --ranking --http 8080

      dalle-collab serve my-org/birds --host /ip4/0.0.0.0/tcp/31338 --bandwidth-limit 20 --max-hours 8

      dalle-collab serve my-org/birds --blocks 0:16
    """
    from pipelines.command_line.serving.model_server import run_server
    from pipelines.command_line.terminal.peer_events import EventFile
    from pipelines.core.swarm.network_options import NetworkOptions

    network = NetworkOptions(
        host_addresses=tuple(host or NetworkOptions.host_addresses),
        announce_addresses=tuple(announce or ()),
        use_relay=relay,
        identity_file=identity_file,
        bandwidth_limit_mbit=bandwidth_limit,
        startup_timeout_seconds=startup_timeout,
    )
    if blocks is not None and (max_codes_per_second is not None or http is not None or ranking):
        raise ValueError(
            "--max-codes-per-second, --ranking and --http are about drawings and have no effect on --blocks."
        )
    options = dict(
        blocks=blocks,
        device=device,
        precision=precision,
        cpu_threads=cpu_threads,
        memory_gibibytes=memory,
        most_codes_per_second=max_codes_per_second,
        ranks=ranking,
        look_seconds=checkpoint_seconds,
        max_hours=max_hours,
        name=name,
    )
    run_server(repository, network, options, events=EventFile(events), http=http)
