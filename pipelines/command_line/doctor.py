"""`dalle-collab doctor`: can this machine take part in a run, and if not, why, and what to do about it."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.command_line.terminal.setting_options import Announce, Device, Host, IdentityFile, Run


def doctor(
    repository: Run,
    micro_batch_size: Annotated[
        str, typer.Option(help="Samples per local step to check memory for; auto: 1, enough for join to start.")
    ] = "auto",
    device: Device = "auto",
    max_gpu_memory: Annotated[float | None, typer.Option(help="Most GiB of each GPU that join will take.")] = None,
    client_mode: Annotated[bool, typer.Option("--client-mode", help="Check as a peer without open ports.")] = False,
    bandwidth_limit: Annotated[float | None, typer.Option(help="Upload limit in Mbit/s that join will get.")] = None,
    host: Host = None,
    announce: Announce = None,
    identity_file: IdentityFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 4 on warnings.")] = False,
    events: Annotated[Path | None, typer.Option(help="Append one JSON line per finding to this file.")] = None,
) -> None:
    """Check whether this machine can take part in a run; each finding names its cause and its cure.

    Checks Hub and token, versions, memory, disk and limits, the data stream, every entry address and the clock, and
    has another peer call this machine. Give it the options you will give to `join`. It changes nothing, but
    that a run with an admission service has a file put into your repository dalle-collab-proof.

    Exit codes: 0 no check fails, 1 invalid option value, 2 usage error, 3 a check fails, 4 with --strict: no check
    fails, but there are warnings, 130 Ctrl-C.

    Examples:

      dalle-collab doctor my-org/birds

      dalle-collab doctor my-org/birds --micro-batch-size 16 --device cuda --host /ip4/0.0.0.0/tcp/31338

      dalle-collab doctor my-org/birds --json --strict
    """
    from pipelines.command_line.terminal.examinations import examine_machine
    from pipelines.command_line.terminal.peer_events import EventFile
    from pipelines.command_line.terminal.setting_options import number_or_auto
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.swarm.network_options import NetworkOptions

    network = NetworkOptions(
        host_addresses=tuple(host or NetworkOptions.host_addresses),
        announce_addresses=tuple(announce or ()),
        client_mode=client_mode,
        identity_file=identity_file,
        bandwidth_limit_mbit=bandwidth_limit,
    )
    size = number_or_auto("--micro-batch-size", micro_batch_size)
    compute = ComputeOptions(micro_batch_size=size, device=device, max_gpu_memory=max_gpu_memory)
    examine_machine(repository, network, compute, as_json=as_json, strict=strict, events=EventFile(events))
