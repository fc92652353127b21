"""`dalle-collab run assist`: the auxiliary peer of a training run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.command_line.terminal import setting_options as shared
from pipelines.command_line.terminal.setting_options import refuse_given

if TYPE_CHECKING:
    from pipelines.features.publishing.auxiliary.evaluating.evaluation_options import EvaluationOptions
    from pipelines.features.publishing.auxiliary.serving_audits import ServingAuditOptions


def assist(
    context: typer.Context,
    repository: shared.Run,
    host: shared.Host = None,
    announce: shared.Announce = None,
    identity_file: shared.IdentityFile = None,
    state_folder: Annotated[
        Path | None, typer.Option(help="Signing key, queued checkpoints, metrics; default: next to the Hub's cache.")
    ] = None,
    organiser_key: Annotated[
        Path | None, typer.Option(help="The organiser's key, if it is here; default: where run create puts it.")
    ] = None,
    takeover_seconds: Annotated[
        float, typer.Option(help="Silence after which another auxiliary peer publishes in this one's place.")
    ] = 180.0,
    metrics_seconds: Annotated[float, typer.Option(help="Seconds between metrics-only publications.")] = 300.0,
    retry_seconds: Annotated[float, typer.Option(help="Seconds between retries while the Hub is down.")] = 20.0,
    spool_gigabytes: Annotated[float, typer.Option(help="Disk space for checkpoints that wait for the Hub.")] = 20.0,
    tracker: Annotated[list[str] | None, typer.Option(help="wandb, trackio or tensorboard; may be repeated.")] = None,
    evaluation_interval_epochs: Annotated[
        int | None, typer.Option(help="Evaluate a checkpoint every so many epochs, in a process of its own.")
    ] = None,
    evaluation_records: Annotated[int, typer.Option(help="Held-out records of an evaluation.")] = 100,
    evaluation_drawings: Annotated[int, typer.Option(help="Pictures that it draws for each of them.")] = 2,
    evaluation_threads: Annotated[int, typer.Option(help="Threads of the CPU that it may use.")] = 1,
    evaluation_device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    evaluation_hours: Annotated[float, typer.Option(help="An evaluation that takes longer is given up.")] = 6.0,
    no_help_averaging: Annotated[
        bool, typer.Option("--no-help-averaging", help="Reduce nothing for others, though it would shorten rounds.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="Remain the swarm's entry after the last epoch: for serving and drawing.")
    ] = False,
    audit_prompts: Annotated[
        Path | None,
        typer.Option(help="With --stay, once the run is over: audit servers with prompts of this file, credit them."),
    ] = None,
    audit_minutes: Annotated[float, typer.Option(help="Minutes between two audits of servers.")] = 60.0,
    startup_timeout: shared.StartupTimeout = 90.0,
    events: Annotated[
        Path | None, typer.Option(help="Append one JSON line per poll of the swarm to this file.")
    ] = None,
) -> None:
    """Start an auxiliary peer: newcomers find the swarm through it, and it publishes checkpoints and metrics.

    It needs no GPU. It announces its addresses in the run's repository, keeps the training state, serves it when all
    trainers have left, and resumes from the newest checkpoint after a restart. With a fast link it reduces gradients
    for the others. While the Hub is down it spools checkpoints to disk. If there are several auxiliary peers, one
    publishes; another takes over if it goes silent.

    Publishers must be listed. On the machine where the run was created it lists itself; on another one it prints the
    command with which the organiser does so, and publishes from then on.

    Examples:

      dalle-collab run assist my-org/birds --host /ip4/0.0.0.0/tcp/31337 --identity-file assist.key

      dalle-collab run assist my-org/birds --tracker wandb

      dalle-collab run assist my-org/birds --stay --audit-prompts prompts.txt

      dalle-collab run assist my-org/birds --evaluation-interval-epochs 500 --evaluation-records 400

      dalle-collab run assist my-org/tiny --host /ip4/127.0.0.1/tcp/0
    """
    from pipelines.command_line.terminal.auxiliary_peer import run_auxiliary_peer
    from pipelines.command_line.terminal.peer_events import EventFile
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions, default_folder

    network = NetworkOptions(
        host_addresses=tuple(host or NetworkOptions.host_addresses),
        announce_addresses=tuple(announce or ()),
        identity_file=identity_file,
        startup_timeout_seconds=startup_timeout,
    )
    evaluation = _evaluation_options(
        context,
        interval_epochs=evaluation_interval_epochs,
        num_records=evaluation_records,
        num_drawings=evaluation_drawings,
        num_threads=evaluation_threads,
        device=evaluation_device,
        limit_seconds=3600.0 * evaluation_hours,
    )
    options = AuxiliaryOptions(
        folder=state_folder or default_folder(repository),
        organiser_key_file=organiser_key,
        takeover_seconds=takeover_seconds,
        metrics_interval_seconds=metrics_seconds,
        retry_seconds=retry_seconds,
        max_spool_gigabytes=spool_gigabytes,
        trackers=tuple(tracker or ()),
        evaluation=evaluation,
        helps_averaging=not no_help_averaging,
    )
    audits = _audit_options(context, audit_prompts, 60.0 * audit_minutes, stays=stay)
    run_auxiliary_peer(repository, network, options, events=EventFile(events), stays=stay, audits=audits)


def _evaluation_options(
    context: typer.Context, *, interval_epochs: int | None, **how: Any
) -> "EvaluationOptions | None":
    """Return how checkpoints are evaluated; `how` are fields of `EvaluationOptions` besides."""
    from pipelines.features.publishing.auxiliary.evaluating.evaluation_options import EvaluationOptions

    if interval_epochs is not None:
        return EvaluationOptions(interval_epochs=interval_epochs, **how)
    names = (f"evaluation_{name}" for name in ("records", "drawings", "threads", "device", "hours"))
    refuse_given(context, "it has no effect without --evaluation-interval-epochs N", *names)
    return None


def _audit_options(
    context: typer.Context, prompts: Path | None, seconds: float, *, stays: bool
) -> "ServingAuditOptions | None":
    from pipelines.features.publishing.auxiliary.serving_audits import ServingAuditOptions

    if prompts is None:
        refuse_given(context, "it has no effect without --audit-prompts FILE", "audit_minutes")
        return None
    if not stays:
        raise ValueError("--audit-prompts is for an entry and has no effect without --stay.")
    return ServingAuditOptions(prompts=prompts.resolve(), interval_seconds=seconds)
