"""The doctor's examinations on the terminal."""

import dataclasses

from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.worker import become_worker
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.swarm.network_options import NetworkOptions


def examine_machine(
    repository: str,
    network: NetworkOptions,
    compute: ComputeOptions,
    *,
    as_json: bool,
    strict: bool,
    events: EventFile,
) -> None:
    """Print whether a peer with these options can join the run from this machine, and leave with an exit code."""
    become_worker()
    from pipelines.command_line.terminal.check_list import show_checks
    from pipelines.features.torch_devices import torch_device
    from pipelines.tools.doctor.examination import run_checks

    compute = dataclasses.replace(compute, device=torch_device(compute.device))
    show_checks(
        f"{repository} on this machine",
        lambda announce: run_checks(repository, network, compute, announce=announce),
        as_json=as_json,
        strict=strict,
        events=events,
    )


def examine_run(repository: str, network: NetworkOptions, *, as_json: bool, strict: bool) -> None:
    """Print whether a run is set up so that it lasts, and leave with an exit code."""
    become_worker()
    from pipelines.command_line.terminal.check_list import show_checks
    from pipelines.tools.doctor.run_examination import run_checklist

    show_checks(
        f"the run {repository}",
        lambda announce: run_checklist(repository, network, announce=announce),
        as_json=as_json,
        strict=strict,
        events=EventFile(None),
    )
