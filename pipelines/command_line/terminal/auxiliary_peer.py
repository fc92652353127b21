"""An auxiliary peer on the terminal."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from hub_tools.counted import counted, duration
from hub_tools.processes.process_group import START_AGAIN_EXIT_CODE, seconds_since_start
from hub_tools.processes.repeating import repeated
from pipelines.command_line.terminal.entry_words import (
    options_without_effect,
    what_entering_asks,
    who_may_join,
    why_it_does_not_publish,
)
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.peer_names import SECONDS_BETWEEN_NAMES, PeerNames
from pipelines.command_line.terminal.worker import become_worker
from pipelines.core.swarm.network_options import NetworkOptions

if TYPE_CHECKING:
    from pathlib import Path

    from rich.status import Status

    from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
    from pipelines.features.publishing.auxiliary.auxiliary_peer import AuxiliaryReport
    from pipelines.features.publishing.auxiliary.evaluating.checkpoint_evaluator import EvaluationOutcome
    from pipelines.features.publishing.auxiliary.serving_audits import ServingAuditOptions
    from pipelines.features.publishing.metrics.trackers import Trackers

SECONDS_BETWEEN_LOOKS = 10.0
"""Of an entry, at who serves."""


def run_auxiliary_peer(
    repository: str,
    network: NetworkOptions,
    options: "AuxiliaryOptions",
    *,
    events: EventFile,
    stays: bool = False,
    audits: "ServingAuditOptions | None" = None,
) -> None:
    """Assist a run until it is finished and published, or a signal asks to stop; publish the held state at the end.

    With `stays` the swarm keeps its entry afterwards, until a signal asks to stop; its servers are audited as `audits`
    says.
    """
    names = PeerNames()
    console = become_worker(names)
    from pipelines.core.run.finished import RunFinishedError

    try:
        was_stopped = _assist(console, repository, network, options, events, names, stays=stays)
    except RunFinishedError:
        if not stays:
            raise
        folder = options.folder / "serving-audits"
        _keep_entry(console, repository, network, options, events, None if audits is None else (audits, folder))
        return
    if stays and not was_stopped:
        raise typer.Exit(START_AGAIN_EXIT_CODE)  # from a fresh process: hivemind forks


def _assist(
    console: Console,
    repository: str,
    network: NetworkOptions,
    options: "AuxiliaryOptions",
    events: EventFile,
    names: PeerNames,
    *,
    stays: bool,
) -> bool:
    """Do so; return whether a signal asked to stop."""
    from pipelines.features.publishing.auxiliary.publishing.hub_publisher import RunRolledBackError
    from pipelines.features.publishing.metrics.trackers import check_trackers
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.tasks.choice import open_task

    check_trackers(options.trackers)
    with console.status(f"Reading {repository}") as status:

        def on_event(event: str, **values: Any) -> None:
            if event == "asking":
                status.update(f"{what_entering_asks(values['run'])} {repository}")
            elif event == "starting anew":
                console.print("None of the announced entry addresses answers: starting a new swarm from here.")
            elif event == "assisting":
                addresses = ", ".join(values["addresses"])
                how = f"entry addresses: {addresses}" if addresses else "its rounds are files on the Hub"
                console.print(f"Assisting {repository} from epoch {values['epoch']}; {how}")
                console.print(who_may_join(values["run"], repository))
            elif event == "unlisted":
                console.print(why_it_does_not_publish(repository, options.key_file, **values), soft_wrap=True)

        over_hub = RunSnapshot.read(repository).run.wire == "hub"
        if over_hub:
            if stays:
                raise ValueError(f"The wire of {repository} is the Hub: it has no swarm to keep. Leave out --stay.")
            if (line := options_without_effect(repository, network)) is not None:
                console.print(line, highlight=False, soft_wrap=True)
            from pipelines.joining.over_the_hub import assist_over_hub

            assisted = assist_over_hub(repository, open_task, options=options, on_event=on_event, takes_signals=True)
        else:
            from pipelines.features.publishing.auxiliary.assisting import assist_run

            how = dict(options=options, network=network, on_event=on_event, takes_signals=True)
            assisted = assist_run(repository, open_task, **how)
        with assisted as assistance, contextlib.ExitStack() as stack:
            peer = assistance.peer
            try:
                if not over_hub:
                    read_names = partial(names.read, assistance.records)
                    stack.enter_context(repeated(read_names, SECONDS_BETWEEN_NAMES, "peer-names"))
                _show_assistance(console, status, peer.follow(assistance.stop), assistance.trackers, events)
            except RunRolledBackError as error:
                console.print(f"{error} Starting again.")
                raise typer.Exit(START_AGAIN_EXIT_CODE) from error
            if (commit := peer.finish()) is not None:
                console.print(
                    f"Published epoch {peer.publisher.published_epoch} as commit {commit[:12]} before leaving."
                )
            console.print(
                f"Left {repository} after {duration(seconds_since_start())}: at epoch {peer.held_epoch} of "
                f"{peer.run.num_epochs}, published up to {peer.publisher.published_epoch}; "
                f"{counted(len(samples := peer.metrics.contributors()), 'user')} contributed {sum(samples.values()):,} "
                f"{peer.run.unit}.",
                highlight=False,
                soft_wrap=True,
            )
            return assistance.stop.is_set()


def _keep_entry(
    console: Console,
    repository: str,
    network: NetworkOptions,
    options: "AuxiliaryOptions",
    events: EventFile,
    audits: "tuple[ServingAuditOptions, Path] | None",
) -> None:
    """Keep the entry of a run that is over until a signal asks to stop; `audits` has their folder, too."""
    from pipelines.core.signing.publisher_keys import PublisherKey
    from pipelines.features.publishing.auxiliary.entry_keeping import kept_entry
    from pipelines.features.publishing.auxiliary.serving_audits import ServingAudits
    from pipelines.features.servers.server_record import SERVERS

    key = PublisherKey.load_or_create(options.key_file)
    with console.status(f"Reading {repository}") as status, contextlib.ExitStack() as stack:

        def on_event(event: str, **values: Any) -> None:
            if event == "asking":
                status.update(f"{what_entering_asks(values['run'])} {repository}")
            else:
                console.print("None of the announced entry addresses answers: starting a new swarm from here.")

        with kept_entry(repository, key=key, network=network, on_event=on_event, takes_signals=True) as entry:
            console.print(
                f"{repository} is over; this is its entry for servers (dalle-collab serve {repository}) and their "
                f"clients (dalle-collab generate, or write for texts, with --swarm): {', '.join(entry.addresses)}",
                soft_wrap=True,
                highlight=False,
            )
            events.happened("entry", addresses=entry.addresses)
            auditing = None if audits is None else stack.enter_context(ServingAudits(repository, *audits))
            while not entry.stop.wait(SECONDS_BETWEEN_LOOKS):
                status.update(counted(len(entry.records.read(SERVERS)), "server"))
                if auditing is not None and (right := auditing.look()) is not None:
                    said = ", ".join(f"{user} {number}" for user, number in right.items()) or "nobody"
                    console.print(f"Audited the servers; candidates drawn right: {said}", highlight=False, markup=False)
                    events.happened("audited", right=right)
    if entry.watch.found_new_generation:
        console.print(f"{repository} was rolled back: assisting its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


def _show_assistance(
    console: Console, status: "Status", reports: "Iterator[AuxiliaryReport]", trackers: "Trackers", events: EventFile
) -> None:
    from pipelines.features.publishing.metrics.stalls import stall_sentence

    status.update("waiting for trainers")
    for report in reports:
        loss = f"{report.summary['loss']:.4f}" if report.summary else "-"
        status.update(
            f"swarm epoch {report.swarm_epoch}  held {report.held_epoch}  published {report.published_epoch}  "
            f"{counted(report.num_trainers, 'trainer')}  loss {loss}"
            + (f"  {counted(report.num_waiting, 'checkpoint')} waiting for the Hub" if report.num_waiting else "")
            + ("" if report.evaluating_epoch is None else f"  evaluating epoch {report.evaluating_epoch}")
            + ("" if report.is_publisher else f"  ({_who_publishes(report.is_listed)})")
        )
        events.write_report(report)
        if report.summary is not None:
            trackers.log_epoch(report.summary)
        if report.evaluation is not None and report.evaluation.figures:
            trackers.log_figures(report.evaluation.figures)
            console.print(_what_came_of_it(report.evaluation), highlight=False, soft_wrap=True)
        if report.stall is not None:
            console.print(stall_sentence(report.stall), highlight=False, soft_wrap=True)
            trackers.log_stall(report.stall)
        if report.published is not None:
            console.print(f"Published epoch {report.published_epoch} as commit {report.published[:12]}.")


def _what_came_of_it(evaluation: "EvaluationOutcome") -> str:
    figures = (
        f"{one.name} {one.value:.4g}" + (f" ({one.interval})" if one.interval else "") for one in evaluation.figures
    )
    return f"Evaluated epoch {evaluation.epoch} in {evaluation.figures[0].seconds:.0f} s: {', '.join(figures)}."


def _who_publishes(is_listed: bool) -> str:
    return "another auxiliary peer publishes" if is_listed else "publishes once its key is listed"
