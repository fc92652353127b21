"""A server of a run's model on the terminal: output for people, and events for programs."""

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
    from pipelines.serving.blocks.layers_offer import LayersOffer
    from pipelines.serving.draw.drawing_offer import DrawingOffer
    from pipelines.serving.offer import ServingOptions
    from pipelines.serving.serving_run import ServingPeer
    from pipelines.swarm.servers.server_record import ServerRecord
    from pipelines.training.repository.snapshot import RunSnapshot


def run_server(
    repository: str, network: NetworkOptions, options: Mapping[str, Any], *, events: EventFile, http: int | None = None
) -> None:
    """Serve a run's drawings or layers until a signal asks to stop or a limit is reached; drawings also on a port."""
    console = become_worker(pauses=True)
    from pipelines.doctor.examination import quick_checks_of_server
    from pipelines.serving.offer import ServingOptions
    from pipelines.serving.serving_run import serve_run

    chosen = ServingOptions(**options)
    draws = chosen.blocks is None
    with console.status(f"Reading {repository}") as status:

        def check(snapshot: "RunSnapshot", on_device: str) -> None:
            report_obstacles(console, repository, quick_checks_of_server(snapshot, on_device, holds_all=draws))

        def hear(event: str, **values: Any) -> None:
            if event == "asking":
                status.update(f"{what_entering_asks(values['run'])} {repository}")
            elif event == "serving":
                peer = values["peer"]
                lines, told = _drawings(repository, chosen, peer) if draws else _layers(repository, peer)
                for line in lines:
                    console.print(line, soft_wrap=True, highlight=False)
                events.happened("serving", peer=peer.peer_id, addresses=values["addresses"], **told)
            elif event == "serves":
                what = f"epoch {values['epoch']} of {repository}"
                if not draws:
                    what = "layers {}:{} of epoch {}".format(*values["layers"], values["epoch"])
                console.print(f"Now serving {what}.", highlight=False)
                events.happened("serves", **values)
            else:
                status.update(f"{event.capitalize()} {repository}")

        with (
            serve_run(repository, network=network, options=chosen, hear=hear, check=check, takes_signals=True) as (
                peer,
                stop,
            ),
            _also_over_http(console, repository, peer.offer, http, events),
        ):
            for record in peer.follow(stop):
                report, words = (_drawing if draws else _computing)(record, peer.offer)
                status.update(f"epoch {record.epoch}  {words}")
                if report:
                    events.write_report(report)
    number = {"num_drawn": peer.offer.record()["num_drawn"]} if draws else {}
    events.happened("left", **number)
    done = f": {counted(number['num_drawn'], peer.offer.medium.product)} for others" if draws else ""
    console.print(f"Left {repository}{done}.")
    if peer.found_new_generation:
        console.print(f"{repository} was rolled back: serving its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


def _drawings(repository: str, chosen: "ServingOptions", peer: "ServingPeer") -> tuple[list[str], dict[str, Any]]:
    """Return what people and programs are told of a server that begins to draw."""
    medium, epoch, rate = peer.offer.medium, peer.offer.record()["epoch"], peer.offer.rate
    command = "write" if medium.product == "text" else "generate"
    lines = [
        f"Serving epoch {epoch} of {repository} in {chosen.precision} at {rate:.0f} "
        f"{medium.unit} a second as {peer.username}. Others get {medium.product}s with: "
        f'dalle-collab {command} {repository} "..." --swarm{" --remote-ranking" * chosen.ranks}',
        f"To pause: kill -USR1 {os.getpid()}; to resume: kill -USR2 {os.getpid()}",
    ]
    return lines, dict(rate=rate, epoch=epoch)


def _drawing(record: "ServerRecord", offer: "DrawingOffer") -> tuple[dict[str, Any], str]:
    """Return what programs and people are told of what it is doing."""
    report = dict(
        state=record.state,
        epoch=record.epoch,
        codes_per_second=record.draw_rate,
        num_drawn=record.num_drawn,
        num_askers=offer.service.places.num_peers,
        free_places=record.free_places,
    )
    drawn, free = counted(record.num_drawn, offer.medium.product), counted(record.free_places, "place")
    return report, f"{drawn} drawn  {report['num_askers']} asking  {free} free"


def _layers(repository: str, peer: "ServingPeer") -> tuple[list[str], dict[str, Any]]:
    """Return what people and programs are told of a server that begins to compute layers."""
    from pipelines.swarm.servers.layers import fill_command

    now = peer.offer.record()
    start, end, epoch, rate = now["first_layer"], now["end_layer"], now["epoch"], now["layer_rate"]
    missing = peer.offer.missing()
    lines = [
        f"Serving layers {start}:{end} of epoch {epoch} of {repository} at {rate:.0f} layers a second as "
        f"{peer.username}.",
        *(f"Nobody serves layers {hole.start}:{hole.stop}: {fill_command(repository, hole)}" for hole in missing),
    ]
    return lines, dict(rate=rate, epoch=epoch, layers=[start, end])


def _computing(record: "ServerRecord", offer: "LayersOffer") -> tuple[dict[str, Any], str]:
    """Return what people are told of what it is doing, and nothing for programs."""
    missing = ", ".join(f"{hole.start}:{hole.stop}" for hole in offer.missing())
    free = f"layers {record.first_layer}:{record.end_layer}  {record.free_cache_bytes / 1e9:.1f} GB free"
    return {}, free + (f"  nobody serves {missing}" if missing else "")


@contextlib.contextmanager
def _also_over_http(
    console: Console, repository: str, offer: "DrawingOffer", port: int | None, events: EventFile
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
    drawing = LocalDrawing(offer.service.checkpoints, offer.service.engine)
    draws = dict(pictures=drawing.pictures) if offer.medium is PICTURES else dict(texts=drawing.texts)
    application = build_application(repository, key_in(key_file), **draws)
    command = f"dalle-collab serve {repository}"
    with application_in_background(application, LOOPBACK, port, command=command) as address:
        console.print(
            f"Programs on this machine: base URL {address}/v1, key in {key_file}", soft_wrap=True, highlight=False
        )
        events.happened("http", address=address, key_file=str(key_file))
        yield
