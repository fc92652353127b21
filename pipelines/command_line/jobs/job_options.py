"""The options `--on-jobs` and its companions: the command that was typed, as a Job."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from pipelines.command_line.terminal.setting_options import Panel

_JOBS = Panel(rich_help_panel="As a Job of the Hub")
OnJobs = Annotated[
    str | None,
    typer.Option(metavar="FLAVOR", help="Run as a Job of the Hub on this hardware, such as t4-small.", **_JOBS),
]
JobHours = Annotated[
    float | None, typer.Option(help="With --on-jobs: hours until the Hub ends the Job; default: 1.", **_JOBS)
]
JobPackage = Annotated[
    str | None, typer.Option(help="With --on-jobs: what the Job installs with pip; default: this version.", **_JOBS)
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="With --on-jobs: show command, hardware, time, cost and secrets only.", **_JOBS),
]
OPTIONS_WITH_VALUES = ("--on-jobs", "--job-hours", "--job-package", "--job-publish")
PACKAGE_VARIABLE = "DALLE_COLLAB_PACKAGE"


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What the options ask for."""

    flavor: str | None
    hours: float | None
    package: str | None
    dry_run: bool

    def is_wanted(self) -> bool:
        """Say whether the command is to run as a Job; ValueError for options that would have no effect."""
        others = {"--job-hours": self.hours, "--job-package": self.package, "--dry-run": self.dry_run or None}
        given = [name for name, value in others.items() if value is not None]
        if self.flavor is None and given:
            raise ValueError(f"{given[0]} is for Jobs only. Name their hardware too: --on-jobs t4-small")
        return self.flavor is not None


def check_reachable(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that have been given, by name, and that mean nothing in a Job."""
    if given := [name for name, value in options.items() if value]:
        raise ValueError(f"{given[0]} cannot be used with --on-jobs: {reason}.")


def run_as_job(
    request: JobRequest,
    purpose: str,
    *,
    more: Sequence[str] = (),
    afterwards: Sequence[Sequence[str]] = (),
    labels: Mapping[str, str] = {},
) -> None:
    """Submit the command that was typed, with `more` options, as a Job; or say what would be submitted."""
    from huggingface_hub import HfApi, get_token

    from hub_tools.endpoint import current_endpoint, is_public_hub
    from hub_tools.hub_jobs import JobPlan, describe_plan, hardware_of, submit
    from pipelines.core.run.versions import package_version

    token = get_token()
    if token is None:
        raise ValueError("A Job needs a token: it runs in your name. Set HF_TOKEN, or run: hf auth login")
    endpoint = current_endpoint()
    package = request.package or os.environ.get(PACKAGE_VARIABLE) or f"dalle-collab=={package_version()}"
    plan = JobPlan(
        commands=[["dalle-collab", *without_job_options(sys.argv[1:]), *more], *afterwards],
        flavor=str(request.flavor),
        hours=hours_of(request),
        package=package,
        environment={} if is_public_hub(endpoint) else {"HF_ENDPOINT": endpoint},
        labels={"dalle-collab": purpose, **labels},
    )
    api = HfApi()
    for line in describe_plan(plan, hardware_of(api, plan.flavor)):
        typer.echo(line)
    if request.dry_run:
        typer.echo("Nothing was submitted.")
        return
    job = submit(plan, api, token)
    where = f"{job.owner.name}/{job.id}"
    typer.echo(f"Job {job.id} is {str(job.status.stage).lower()}: {job.url}")
    typer.echo(
        f"Its output: hf jobs logs {where}   Its state: hf jobs inspect {where}   End it: hf jobs cancel {where}"
    )


def hours_of(request: JobRequest) -> float:
    """Return after how many hours the Hub ends the Job."""
    return 1.0 if request.hours is None else request.hours


def without_job_options(words: Sequence[str]) -> list[str]:
    """Return a command's words without those that say it is to be a Job."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in OPTIONS_WITH_VALUES:
            skip = True
        elif word != "--dry-run" and not word.startswith(tuple(f"{name}=" for name in OPTIONS_WITH_VALUES)):
            kept.append(word)
    return kept
