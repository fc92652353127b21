"""A training peer on the terminal: output for people, and events for programs."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.status import Status
from rich.text import Text

from hub_tools.counted import counted, duration, file_size, nats
from hub_tools.processes.process_group import HAS_GROUPS, START_AGAIN_EXIT_CODE, seconds_since_start
from hub_tools.processes.repeating import repeated
from pipelines.command_line.terminal.check_list import report_obstacles
from pipelines.command_line.terminal.entry_words import options_without_effect, what_entering_asks, who_may_join
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.peer_names import SECONDS_BETWEEN_NAMES, PeerNames
from pipelines.command_line.terminal.worker import become_worker
from pipelines.core.peer.reports import StepReport
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.features.bandwidth.session_totals import SessionTraffic, seconds_left

if TYPE_CHECKING:
    from pipelines.core.peer.entering import Membership
    from pipelines.core.peer.training_peer import TrainingPeer
    from pipelines.features.publishing.metrics.credit.standing import Standing
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.joining.over_the_hub import HubMembership

SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_TOTALS = 5.0, 600.0
SECONDS_BETWEEN_COUNTS, SECONDS_BETWEEN_STANDINGS = 2.0, 600.0
LEAST_HOURS = 0.05
"""Of a session whose traffic is also said by the hour."""


def run_training_peer(repository: str, network: NetworkOptions, compute: ComputeOptions, *, events: EventFile) -> None:
    """Join a run and train until it ends, the options' limit is reached, or a signal asks to stop."""
    names = PeerNames()
    console = become_worker(names, pauses=True)
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    with console.status(f"Reading {repository}") as status, contextlib.ExitStack() as stack:
        on_event = partial(_on_event, repository, console, status, events)
        if RunSnapshot.read(repository).run.wire == "hub":
            if (line := options_without_effect(repository, network)) is not None:
                console.print(line, highlight=False, soft_wrap=True)
            membership: HubMembership | Membership = stack.enter_context(
                _joined_over_hub(console, repository, compute, on_event)
            )
            reports = membership.train()
        else:
            in_swarm = stack.enter_context(_joined(console, status, repository, network, compute, on_event))
            membership = in_swarm
            reports = _noting_link(repository, console, in_swarm.train(), in_swarm.peer)
            read_names = partial(names.read, in_swarm.peer.records)
            stack.enter_context(repeated(read_names, SECONDS_BETWEEN_NAMES, "peer-names"))
        session = Session(repository, membership.username, membership.peer.run)
        stack.enter_context(repeated(session.count_traffic, SECONDS_BETWEEN_COUNTS, "traffic"))
        stack.enter_context(repeated(session.read_standing, SECONDS_BETWEEN_STANDINGS, "standing"))
        _show_training(console, status, reports, events, session)
    peer = membership.peer
    events.happened("left", num_samples=peer.num_samples)
    console.print(
        f"Left {repository}: contributed {peer.num_samples} {peer.run.unit} in {counted(peer.num_epochs, 'epoch')} and "
        f"{duration(seconds_since_start())}; at epoch {peer.epoch} of {peer.run.num_epochs}; "
        f"{session.traffic_words()}.",
        highlight=False,
        soft_wrap=True,
    )
    if membership.found_new_generation:
        console.print(f"{repository} was rolled back: joining its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


def _joined(
    console: Console,
    status: Status,
    repository: str,
    network: NetworkOptions,
    compute: ComputeOptions,
    on_event: Callable[..., None],
) -> "contextlib.AbstractContextManager[Membership]":
    """Join a swarm."""
    from pipelines.core.peer.entering import PeerContext
    from pipelines.joining.join_run import join_run
    from pipelines.tasks.choice import open_task
    from pipelines.tools.doctor.examination import quick_checks

    parts = PeerContext(
        on_event=on_event,
        show=(lambda progress: status.update(str(progress))) if console.is_terminal else None,
        takes_signals=True,
    )

    def check(snapshot: "RunSnapshot", network: NetworkOptions, compute: ComputeOptions) -> None:
        report_obstacles(console, repository, quick_checks(snapshot, network, compute))
        _say_condition(console, snapshot)

    return join_run(repository, open_task, network=network, compute=compute, check=check, parts=parts)


def _joined_over_hub(
    console: Console, repository: str, compute: ComputeOptions, on_event: Callable[..., None]
) -> "contextlib.AbstractContextManager[HubMembership]":
    """Join a run whose wire is the Hub."""
    from pipelines.joining.over_the_hub import join_over_hub
    from pipelines.tasks.choice import open_task
    from pipelines.tools.doctor.examination import quick_checks

    def check(snapshot: "RunSnapshot", compute: ComputeOptions) -> None:
        report_obstacles(console, repository, quick_checks(snapshot, NetworkOptions(), compute))
        _say_condition(console, snapshot)

    return join_over_hub(repository, open_task, compute=compute, check=check, on_event=on_event, takes_signals=True)


def _say_condition(console: Console, snapshot: "RunSnapshot") -> None:
    """Print what the run is doing, by what it has published; nothing if that cannot be read, which hinders nobody."""
    from pipelines.features.publishing.metrics.history import read_condition

    with contextlib.suppress(OSError, ValueError):
        condition = read_condition(snapshot, now=time.time())
        console.print(f"{snapshot.repository}: {condition.sentence}", highlight=False, soft_wrap=True)


def _on_event(repository: str, console: Console, status: Status, events: EventFile, event: str, **values: Any) -> None:
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
        if event != "entered":
            status.update(event)


def _noting_link(
    repository: str, console: Console, reports: Iterator[StepReport], peer: "TrainingPeer"
) -> Iterator[StepReport]:
    """Pass reports on; say once what a round takes on this link, and remember what it was measured to carry."""
    from pipelines.core.averaging.division import Link
    from pipelines.features.bandwidth.estimate import round_line
    from pipelines.features.publishing.repository.organiser import link_file
    from pipelines.tools.doctor.link_checks import remember_link

    num_parameters = sum(parameter.numel() for parameter in peer.model.parameters() if parameter.requires_grad)
    is_said, limit = False, peer.network.bandwidth_limit_mbit
    if limit is not None:
        line = round_line(peer.run, num_parameters, Link(up=limit, down=limit), "--bandwidth-limit")
        console.print(f"A round takes {line}.", highlight=False)
    for report in reports:
        newest = peer.optimizer.averager.last_round
        if report.ended_epoch and newest.up_mbit:
            link = Link(up=newest.up_mbit, down=newest.down_mbit)
            remember_link(link_file(repository), link, limit)
            if not is_said:
                console.print(
                    f"A round takes {round_line(peer.run, num_parameters, link, 'measured')}.", highlight=False
                )
            is_said = True
        yield report


class Session:
    """What a volunteer is told of the whole: the traffic of this session, and all of its user's sessions together."""

    def __init__(self, repository: str, username: str, run: TrainingRun) -> None:
        self._repository, self._username, self._run, self._started = repository, username, run, time.monotonic()
        self._traffic = SessionTraffic()
        self._standing: Standing | None = None
        self._first: tuple[int, float] | None = None

    def count_traffic(self) -> None:
        """Add what this peer's processes have moved since the last call."""
        if HAS_GROUPS:
            self._traffic.look(os.getpgrp())

    def read_standing(self) -> None:
        """Read from the Hub what is credited to the user."""
        from huggingface_hub import get_token

        from pipelines.core.peer.volunteer import ANONYMOUS
        from pipelines.features.publishing.metrics.credit.standing import read_standing

        if self._username != ANONYMOUS:
            self._standing = read_standing(self._repository, self._username, get_token())

    def traffic_words(self) -> str:
        """Return the bytes up and down, in all and by the hour."""
        hours = (time.monotonic() - self._started) / 3600
        return traffic_words(self._traffic.sent, self._traffic.received, hours)

    def progress(self, report: StepReport) -> str:
        """Return where the run is, how fast, and how long it still takes: at most 78 characters, as a rule."""
        now, run = time.monotonic(), self._run
        if self._first is None:
            self._first = (report.epoch, now)
        first, since = self._first
        speed = report.swarm_samples_per_second
        left = seconds_left(
            first, report.epoch, run.num_epochs, seconds=now - since,
            batch_size=run.samples_per_epoch, samples_per_second=speed,
        )  # fmt: skip
        return (
            f"epoch {report.epoch:,}/{run.num_epochs:,}  loss {nats(report.epoch_loss)}  "
            f"{counted(report.num_peers, 'peer')}, {speed:,.{0 if speed >= 1000 else 1}f} {run.unit}/s"
            + ("" if left is None else f"  {duration_words(left)} left")
        )

    def own_part(self, report: StepReport) -> str:
        """Return what this peer does for it: at most 78 characters, as a rule."""
        return (
            f"yours: {report.num_samples:,} {self._run.unit}, {report.samples_per_second:,.1f}/s, "
            f"averaged {report.share_averaged:.0%}, {report.bytes_per_sample / 1e3:,.1f} kB sent for each"
        )

    def totals(self) -> str:
        """Return the session's traffic, and what all sessions of the user have come to."""
        standing = [] if self._standing is None else [standing_words(self._standing, self._run.unit)]
        return "  ".join([self.traffic_words(), *standing])


def traffic_words(sent: int, received: int, hours: float) -> str:
    """Return bytes up and down, in all and by the hour: `sent 1.2 GB, 400 MB an hour; ...`."""
    words = []
    for verb, number in (("sent", sent), ("received", received)):
        by_the_hour = f", {file_size(number / hours)} an hour" if hours >= LEAST_HOURS else ""
        words.append(f"{verb} {file_size(number)}{by_the_hour}")
    return "; ".join(words)


def standing_words(standing: "Standing", unit: str) -> str:
    """Return what all sessions of a user have come to."""
    place = f"place {standing.place} of {standing.num_contributors:,}, {standing.share:.1%} of all"
    return f"{standing.samples:,} {unit} credited in all sessions: {place}"


def duration_words(seconds: float) -> str:
    """Return a length of time that is only known roughly."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or unit == "min":
            return f"about {max(1, round(seconds / length)):,} {unit}"
    raise AssertionError("unreachable")


def _show_training(
    console: Console, status: Status, reports: Iterator[StepReport], events: EventFile, session: Session
) -> None:
    last_line, last_totals, is_counted = 0.0, time.monotonic(), False
    status.update("training")
    for report in reports:
        if report.loss is None:
            continue
        if report.was_used and not is_counted:
            is_counted = True
            console.print(f"First gradient counted {seconds_since_start():.0f} s after the start.", highlight=False)
        progress, own_part = session.progress(report), session.own_part(report)
        status.update(_cut_off(progress, own_part, session.totals()))
        events.step(report)
        if report.ended_epoch and not console.is_terminal and time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
            console.print(f"{progress}  {own_part}")
            last_line = time.monotonic()
            if last_line - last_totals > SECONDS_BETWEEN_TOTALS:
                console.print(session.totals())
                last_totals = last_line


def _cut_off(*lines: str) -> Group:
    """Return lines that are never wrapped: on a terminal that is too narrow each ends in an ellipsis."""
    first, *others = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
    return Group(first, *(Padding(other, (0, 0, 0, 2)) for other in others))
