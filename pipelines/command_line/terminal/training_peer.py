"""A training peer on the terminal: output for people, and events for programs."""

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import typer
from rich.console import Console

from hub_tools.counted import counted
from pipelines.command_line.terminal.check_list import report_obstacles
from pipelines.command_line.terminal.entry_words import what_entering_asks, who_may_join
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.peer_names import PeerNames
from pipelines.command_line.terminal.worker import become_worker
from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.peer.process_group import START_AGAIN_EXIT_CODE, seconds_since_start
from pipelines.training.run.compute_options import ComputeOptions

SECONDS_BETWEEN_LINES = 5.0


def run_training_peer(repository: str, network: NetworkOptions, compute: ComputeOptions, *, events: EventFile) -> None:
    """Join a run and train until it ends, the options' limit is reached, or a signal asks to stop."""
    names = PeerNames()
    console = become_worker(names, pauses=True)
    from pipelines.doctor.examination import quick_checks
    from pipelines.training.peer.joining import PeerParts, join_run
    from pipelines.training.tasks.choice import open_task

    with console.status(f"Reading {repository}") as status:
        parts = PeerParts(
            hear=partial(_hear, repository, console, status, events),
            show=(lambda progress: status.update(str(progress))) if console.is_terminal else None,
            takes_signals=True,
        )
        with join_run(
            repository,
            open_task,
            network=network,
            compute=compute,
            check=lambda *machine: report_obstacles(console, repository, quick_checks(*machine)),
            parts=parts,
        ) as membership:
            reports = _noting_link(repository, console, membership.train(), membership.peer)
            with names.kept(membership.peer.records):
                _show_training(console, status, reports, membership.peer, events)
    num_samples = membership.peer.num_samples
    events.happened("left", num_samples=num_samples)
    console.print(f"Left {repository}: contributed {num_samples} {membership.peer.run.unit}.")
    if membership.found_new_generation:
        console.print(f"{repository} was rolled back: joining its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


def _hear(repository: str, console: Console, status: Any, events: EventFile, event: str, **values: Any) -> None:
    """Report the steps of joining the swarm."""
    if event == "asking":
        status.update(f"{what_entering_asks(values['run'])} {repository}")
    elif event == "synchronising":
        status.update("Looking for the newest training state")
    elif event == "joined":
        run, user, epoch = values["run"], values["username"], values["epoch"]
        console.print(f"Joined {repository} as {user} at epoch {epoch} (state: {values['state']}).")
        events.happened(
            "joined", username=user, epoch=epoch, num_epochs=run.num_epochs, unit=run.unit, state=values["state"]
        )
        console.print(who_may_join(run, repository))
        by_signal = f"kill -USR1 {os.getpid()}; to resume: kill -USR2 {os.getpid()}"
        by_key = "press p, and again to resume; from elsewhere: " if sys.stdin.isatty() else ""
        console.print(f"To pause it: {by_key}{by_signal}", highlight=False)
    elif event in ("entered", "paused", "resumed"):
        events.happened(event)


def _noting_link(repository: str, console: Console, reports: Iterator[Any], peer: Any) -> Iterator[Any]:
    """Pass reports on; say once what a round takes on this link, and remember what it was measured to carry."""
    from pipelines.doctor.link_checks import remember_link
    from pipelines.training.averaging.bandwidth.estimate import round_line
    from pipelines.training.averaging.bandwidth.shares import Link
    from pipelines.training.repository.organiser import link_file

    num_parameters = sum(parameter.numel() for parameter in peer.model.parameters() if parameter.requires_grad)
    is_said, limit = False, peer.network.bandwidth_limit_mbit
    if limit is not None:
        line = round_line(peer.run, num_parameters, Link(up=limit, down=limit), "--bandwidth-limit")
        console.print(f"A round takes {line}.", highlight=False)
    for report in reports:
        newest = peer.optimizer.grad_averager.last_round
        if report.ended_epoch and newest.up_mbit:
            link = Link(up=newest.up_mbit, down=newest.down_mbit)
            remember_link(link_file(repository), link)
            if not is_said:
                console.print(
                    f"A round takes {round_line(peer.run, num_parameters, link, 'measured')}.", highlight=False
                )
            is_said = True
        yield report


def _show_training(console: Console, status: Any, reports: Iterator[Any], peer: Any, events: EventFile) -> None:
    last_line, is_counted = 0.0, False
    num_epochs, unit = peer.run.num_epochs, peer.run.unit
    status.update("training")
    for report in reports:
        if report.loss is None:
            continue
        if report.was_used and not is_counted:
            is_counted = True
            console.print(f"First gradient counted {seconds_since_start():.0f} s after the start.", highlight=False)
        text = (
            f"epoch {report.epoch}/{num_epochs}  mean loss {report.epoch_loss:.4f}  "
            f"{counted(report.num_peers, 'peer')}: {report.swarm_samples_per_second:.1f} {unit}/s, "
            f"{report.samples_per_second:.1f} of them here  share averaged {report.share_averaged:.0%}  "
            f"yours {report.num_samples} {unit}, {report.bytes_per_sample / 1e3:,.1f} kB sent for each"
        )
        status.update(text)
        events.step(report)
        if report.ended_epoch and not console.is_terminal and time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
            console.print(text)
            last_line = time.monotonic()
