"""A server of a run's model on the terminal: output for people, and events for programs."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from hub_tools.counted import counted, memory_size
from hub_tools.processes.process_group import START_AGAIN_EXIT_CODE
from pipelines.command_line.terminal.check_list import report_obstacles
from pipelines.command_line.terminal.entry_words import what_entering_asks
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.worker import become_worker
from pipelines.core.swarm.network_options import NetworkOptions

if TYPE_CHECKING:
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.features.serving.blocks.layers_offer import BlockReport
    from pipelines.features.serving.draw.drawing_offer import DrawingOffer, ServingReport
    from pipelines.features.serving.offer import ServingOptions
    from pipelines.features.serving.serving_run import ServingPeer


def run_server(
    repository: str, network: NetworkOptions, options: Mapping[str, Any], *, events: EventFile, http: int | None = None
) -> None:
    """Serve a run's drawings or layers until a signal asks to stop or a limit is reached; drawings also on a port."""
    console = become_worker(pauses=True)
    from pipelines.features.serving.offer import ServingOptions
    from pipelines.features.serving.serving_run import serve_run
    from pipelines.tools.doctor.examination import quick_checks_of_server

    chosen = ServingOptions(**options)
    draws = chosen.blocks is None
    with console.status(f"Reading {repository}") as status:

        def check(snapshot: "RunSnapshot", on_device: str) -> None:
            report_obstacles(console, repository, quick_checks_of_server(snapshot, on_device, holds_all=draws))

        def on_event(event: str, **values: Any) -> None:
            if event == "asking":
                status.update(f"{what_entering_asks(values['run'])} {repository}")
            elif event == "serving":
                peer = values["peer"]
                report = peer.offer.report()
                for line in (_drawings if draws else _layers)(repository, chosen, peer, report):
                    console.print(line, soft_wrap=True, highlight=False)
                told = (
                    dict(rate=report.codes_per_second)
                    if draws
                    else dict(rate=report.layers_per_second, layers=[report.layers.start, report.layers.stop])
                )
                events.happened("serving", peer=peer.peer_id, epoch=report.epoch, addresses=values["addresses"], **told)
            elif event == "serves":
                what = f"epoch {values['epoch']} of {repository}"
                if not draws:
                    what = "layers {}:{} of epoch {}".format(*values["layers"], values["epoch"])
                console.print(f"Now serving {what}.", highlight=False)
                events.happened("serves", **values)
            else:
                status.update(f"{event.capitalize()} {repository}")

        with (
            serve_run(
                repository, network=network, options=chosen, on_event=on_event, check=check, takes_signals=True
            ) as (
                peer,
                stop,
            ),
            _also_over_http(console, repository, peer.offer, http, events),
        ):
            for report in peer.follow(stop):
                status.update(f"epoch {report.epoch}  {(_drawing if draws else _computing)(peer, report)}")
                if draws:
                    events.write_report(report)
    number = {"num_drawn": peer.offer.report().num_drawn} if draws else {}
    events.happened("left", **number)
    done = f": {counted(number['num_drawn'], peer.offer.modality.product)} for others" if draws else ""
    console.print(f"Left {repository}{done}.")
    if peer.found_new_generation:
        console.print(f"{repository} was rolled back: serving its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


def _drawings(repository: str, chosen: "ServingOptions", peer: "ServingPeer", report: "ServingReport") -> Iterator[str]:
    """Yield what people read of a server that begins to draw."""
    modality = peer.offer.modality
    command = "write" if modality.product == "text" else "generate"
    yield (
        f"Serving epoch {report.epoch} of {repository} in {chosen.precision} at {report.codes_per_second:.0f} "
        f"{modality.unit} a second as {peer.username}. Others get {modality.product}s with: "
        f'dalle-collab {command} {repository} "..." --swarm{" --remote-ranking" * chosen.ranks}'
    )
    yield f"To pause: kill -USR1 {os.getpid()}; to resume: kill -USR2 {os.getpid()}"


def _drawing(peer: "ServingPeer", report: "ServingReport") -> str:
    drawn, free = counted(report.num_drawn, peer.offer.modality.product), counted(report.free_places, "place")
    return f"{drawn} drawn  {report.num_clients} asking  {free} free"


def _layers(repository: str, _chosen: "ServingOptions", peer: "ServingPeer", report: "BlockReport") -> Iterator[str]:
    """Yield what people read of a server that begins to compute layers."""
    from pipelines.features.servers.layers import fill_command

    yield (
        f"Serving layers {report.layers.start}:{report.layers.stop} of epoch {report.epoch} of {repository} at "
        f"{report.layers_per_second:.0f} layers a second as {peer.username}."
    )
    for hole in report.missing:
        yield f"Nobody serves layers {hole.start}:{hole.stop}: {fill_command(repository, hole)}"


def _computing(_peer: "ServingPeer", report: "BlockReport") -> str:
    missing = ", ".join(f"{hole.start}:{hole.stop}" for hole in report.missing)
    return f"layers {report.layers.start}:{report.layers.stop}  {memory_size(report.free_cache_bytes)} free" + (
        f"  nobody serves {missing}" if missing else ""
    )


@contextlib.contextmanager
def _also_over_http(
    console: Console, repository: str, offer: "DrawingOffer", port: int | None, events: EventFile
) -> Iterator[None]:
    """Draw for programs on this machine too, if there is a port for them."""
    if port is None:
        yield
        return
    from hub_tools.http_serving import application_in_background
    from pipelines.features.publishing.repository.organiser import local_folder
    from pipelines.features.serving.draw.http.application import LOOPBACK, build_application, key_in
    from pipelines.features.serving.draw.http.local_drawing import LocalDrawing
    from pipelines.features.serving.draw.modalities.pictures import PICTURES

    key_file = local_folder("serving", repository) / "http.key"
    drawing = LocalDrawing(offer.service.checkpoints, offer.service.engine)
    draws = dict(pictures=drawing.pictures) if offer.modality is PICTURES else dict(texts=drawing.texts)
    application = build_application(repository, key_in(key_file), **draws)
    command = f"dalle-collab serve {repository}"
    with application_in_background(application, LOOPBACK, port, command=command) as address:
        console.print(
            f"Programs on this machine: base URL {address}/v1, key in {key_file}", soft_wrap=True, highlight=False
        )
        events.happened("http", address=address, key_file=str(key_file))
        yield
