"""`dalle-collab join`: give GPU time to a training run."""

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.command_line.jobs.job_options import (
    DryRun,
    JobHours,
    JobPackage,
    JobRequest,
    OnJobs,
    check_reachable,
    hours_of,
    run_as_job,
)
from pipelines.command_line.terminal import setting_options as shared

if TYPE_CHECKING:
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.swarm.network_options import NetworkOptions

_MACHINE = shared.Panel(rich_help_panel="This machine")
_LEAVING = shared.Panel(rich_help_panel="When to leave")
_PROGRAMS = shared.Panel(rich_help_panel="For programs")

HOURS_TO_LEAVE = 0.1
"""How long before its end a Job's peer begins to leave, so that it is not cut off in a round."""


def join(
    repository: shared.Run,
    micro_batch_size: Annotated[
        str, typer.Option(help="Samples per local step; auto finds what memory and speed allow.", **_MACHINE)
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", **_MACHINE)] = "auto",
    num_devices: Annotated[
        str, typer.Option(help="Devices that act as one peer; auto takes all GPUs.", **_MACHINE)
    ] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.", **_MACHINE)] = "auto",
    compile_: Annotated[
        str, typer.Option("--compile", help="Compile the model: auto, on or off.", **_MACHINE)
    ] = "auto",
    cpu_threads: Annotated[
        int | None,
        typer.Option(help="Threads for computing; default: OMP_NUM_THREADS, else what is fastest.", **_MACHINE),
    ] = None,
    shuffle_buffer: Annotated[int, typer.Option(help="Records in the shuffle buffer.", **_MACHINE)] = 2048,
    max_load: Annotated[
        float,
        typer.Option(
            help="Compute for at most this share of the time, in percent; the device rests in between.", **_MACHINE
        ),
    ] = 100.0,
    max_gpu_memory: Annotated[
        float | None,
        typer.Option(help="Take at most this many GiB of each GPU; the rest is for other programs.", **_MACHINE),
    ] = None,
    max_hours: Annotated[float | None, typer.Option(help="Leave after this many hours.", **_LEAVING)] = None,
    max_epochs: Annotated[int | None, typer.Option(help="Leave after this many epochs.", **_LEAVING)] = None,
    client_mode: Annotated[
        bool, typer.Option("--client-mode", help="Accept no connections (firewall).", **shared.NETWORK)
    ] = False,
    relay: shared.Relay = False,
    bandwidth_limit: shared.BandwidthLimit = None,
    host: shared.Host = None,
    announce: shared.Announce = None,
    identity_file: shared.IdentityFile = None,
    startup_timeout: shared.StartupTimeout = 90.0,
    events: Annotated[
        Path | None,
        typer.Option(help="Append a JSON line per epoch and per event (such as joining) to this file.", **_PROGRAMS),
    ] = None,
    event_seconds: Annotated[
        float | None,
        typer.Option(help="Also write lines within an epoch, at most one in this many seconds.", **_PROGRAMS),
    ] = None,
    on_jobs: OnJobs = None,
    job_hours: JobHours = None,
    job_package: JobPackage = None,
    dry_run: DryRun = False,
) -> None:
    """Join a training run; its name is all you need.

    Everything else is read from the run's repository or detected on this machine. Ctrl-C leaves the run cleanly; a
    second one quits at once. SIGUSR1 pauses the peer, SIGUSR2 resumes it; the other peers do not wait for it.

    Examples:

      dalle-collab join my-org/birds

      dalle-collab join my-org/birds --micro-batch-size 16 --device cuda

      dalle-collab join my-org/birds --client-mode

      dalle-collab join my-org/birds --num-devices 4 --precision bf16 --bandwidth-limit 50 --max-hours 8

      dalle-collab join my-org/birds --on-jobs t4-small --job-hours 8 --dry-run
    """
    request = JobRequest(flavor=on_jobs, hours=job_hours, package=job_package, dry_run=dry_run)
    if request.is_wanted():
        check_reachable({"--identity-file": identity_file, "--events": events}, "a file of the Job is lost at its end")
        check_reachable({"--host": host, "--announce": announce, "--relay": relay}, "nobody can connect to a Job")
        return _join_as_job(request, repository, max_hours, is_client=client_mode)
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.swarm.network_options import NetworkOptions

    network = NetworkOptions(
        host_addresses=tuple(host or NetworkOptions.host_addresses),
        announce_addresses=tuple(announce or ()),
        client_mode=client_mode,
        use_relay=relay,
        identity_file=identity_file,
        bandwidth_limit_mbit=bandwidth_limit,
        startup_timeout_seconds=startup_timeout,
    )
    compute = ComputeOptions(
        micro_batch_size=shared.number_or_auto("--micro-batch-size", micro_batch_size),
        device=device,
        num_devices=shared.number_or_auto("--num-devices", num_devices),
        precision=precision,
        compile=compile_,
        cpu_threads=cpu_threads,
        shuffle_buffer_size=shuffle_buffer,
        max_epochs=max_epochs,
        max_hours=max_hours,
        max_load=max_load,
        max_gpu_memory=max_gpu_memory,
    )
    _train(repository, network, compute, events, event_seconds)


def _join_as_job(request: JobRequest, repository: str, max_hours: float | None, *, is_client: bool) -> None:
    hours = min(max_hours or math.inf, hours_of(request) - HOURS_TO_LEAVE)
    if hours <= 0:
        raise ValueError(f"The Job is to end after {hours_of(request)} hours; a peer needs more: --job-hours 1")
    more = ["--max-hours", f"{hours:g}", *([] if is_client or _is_over_hub(repository) else ["--client-mode"])]
    run_as_job(request, "join", more=more, labels={"run": repository.replace("/", "--")})


def _train(
    repository: str, network: "NetworkOptions", compute: "ComputeOptions", events: Path | None, seconds: float | None
) -> None:
    if seconds is not None and events is None:
        raise ValueError("--event-seconds says how often lines are written, but no file is named. Add: --events FILE")
    from pipelines.command_line.terminal.peer_events import EventFile
    from pipelines.command_line.terminal.training_peer import run_training_peer
    from pipelines.core.run.finished import RunFinishedError

    event_file = EventFile(events, step_seconds=seconds)
    try:
        run_training_peer(repository, network, compute, events=event_file)
    except RunFinishedError as error:
        event_file.happened("over", message=str(error))
        raise


def _is_over_hub(repository: str) -> bool:
    """Whether the run's peers take no connections at all; a run that cannot be read here may be readable to the Job."""
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    with contextlib.suppress(OSError, ValueError):
        return RunSnapshot.read(repository).run.wire == "hub"
    return False
