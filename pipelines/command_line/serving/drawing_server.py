"""A drawing server on the terminal: output for people, and events for programs."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from hub_tools.counted import counted
from pipelines.command_line.terminal.check_list import report_obstacles
from pipelines.command_line.terminal.entry_words import what_entering_asks
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.worker import become_worker
from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.peer.process_group import START_AGAIN_EXIT_CODE

if TYPE_CHECKING:
    from pipelines.serving.draw.serving_run import DrawingPeer
    from pipelines.training.repository.snapshot import RunSnapshot


def run_drawing_server(
    repository: str, network: NetworkOptions, options: Mapping[str, Any], *, events: EventFile, http: int | None = None
) -> None:
    """Serve a run's drawings until a signal asks to stop or the options' limit is reached; also on a port here."""
    console = become_worker(pauses=True)
    from pipelines.doctor.examination import quick_checks_of_server
    from pipelines.serving.draw.serving_run import ServingOptions, serve_run

    chosen = ServingOptions(**options)
    with console.status(f"Reading {repository}") as status:

        def check(snapshot: "RunSnapshot", on_device: str) -> None:
            report_obstacles(console, repository, quick_checks_of_server(snapshot, on_device, holds_all=True))

        def hear(event: str, **values: Any) -> None:
            if event == "asking":
                status.update(f"{what_entering_asks(values['run'])} {repository}")
            elif event == "serving":
                peer = values["peer"]
                current = peer.service.checkpoints.current
                command = "write" if peer.medium.product == "text" else "generate"
                console.print(
                    f"Serving epoch {current.epoch} of {repository} in {chosen.precision} at {peer.rate:.0f} "
                    f"{peer.medium.unit} a second as {peer.username}. Others get {peer.medium.product}s with: "
                    f'dalle-collab {command} {repository} "..." --swarm{" --remote-ranking" * chosen.ranks}',
                    soft_wrap=True,
                    highlight=False,
                )
                console.print(f"To pause: kill -USR1 {os.getpid()}; to resume: kill -USR2 {os.getpid()}")
                events.happened(
                    "serving", peer=peer.peer_id, rate=peer.rate, epoch=current.epoch, addresses=values["addresses"]
                )
            elif event == "serves":
                console.print(f"Now serving epoch {values['epoch']} of {repository}.", highlight=False)
                events.happened("serves", epoch=values["epoch"])
            else:
                status.update(f"{event.capitalize()} {repository}")

        with (
            serve_run(repository, network=network, options=chosen, hear=hear, check=check, takes_signals=True) as (
                peer,
                stop,
            ),
            _also_over_http(console, repository, peer, http, events),
        ):
            for report in peer.follow(stop):
                status.update(
                    f"epoch {report.epoch}  {counted(report.num_drawn, peer.medium.product)} drawn  "
                    f"{report.num_askers} asking  {counted(report.free_places, 'place')} free"
                )
                events.write_report(report)
    events.happened("left", num_drawn=peer.report().num_drawn)
    console.print(f"Left {repository}: {counted(peer.report().num_drawn, peer.medium.product)} for others.")
    if peer.found_new_generation:
        console.print(f"{repository} was rolled back: serving its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


@contextlib.contextmanager
def _also_over_http(
    console: Console, repository: str, peer: "DrawingPeer", port: int | None, events: EventFile
) -> Iterator[None]:
    """Draw for programs on this machine too, if there is a port for them."""
    if port is None:
        yield
        return
    from hub_tools.http_serving import application_in_background
    from pipelines.serving.draw.http.application import LOOPBACK, build_application, key_in
    from pipelines.serving.draw.http.local_drawing import LocalDrawing
    from pipelines.serving.draw.media.pictures import PICTURES
    from pipelines.training.repository.organiser import local_folder

    key_file = local_folder("serving", repository) / "http.key"
    drawing = LocalDrawing(peer.service.checkpoints, peer.service.engine)
    draws = dict(pictures=drawing.pictures) if peer.medium is PICTURES else dict(texts=drawing.texts)
    application = build_application(repository, key_in(key_file), **draws)
    command = f"dalle-collab serve {repository}"
    with application_in_background(application, LOOPBACK, port, command=command) as address:
        console.print(
            f"Programs on this machine: base URL {address}/v1, key in {key_file}", soft_wrap=True, highlight=False
        )
        events.happened("http", address=address, key_file=str(key_file))
        yield
