"""A server of some layers on the terminal: output for people, and events for programs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from pipelines.command_line.terminal.check_list import report_obstacles
from pipelines.command_line.terminal.entry_words import what_entering_asks
from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.command_line.terminal.worker import become_worker
from pipelines.swarm.network_options import NetworkOptions
from pipelines.training.peer.process_group import START_AGAIN_EXIT_CODE

if TYPE_CHECKING:
    from pipelines.training.repository.snapshot import RunSnapshot


def run_block_server(
    repository: str, network: NetworkOptions, options: Mapping[str, Any], *, events: EventFile
) -> None:
    """Serve layers of a run's model until a signal asks to stop or the options' limit is reached."""
    console = become_worker(pauses=True)
    from pipelines.doctor.examination import quick_checks_of_server
    from pipelines.serving.blocks.hosting import BlockOptions, serve_blocks
    from pipelines.swarm.servers.layers import fill_command

    chosen = BlockOptions(**options)
    with console.status(f"Reading {repository}") as status:

        def check(snapshot: "RunSnapshot", on_device: str) -> None:
            report_obstacles(console, repository, quick_checks_of_server(snapshot, on_device, holds_all=False))

        def hear(event: str, **values: Any) -> None:
            if event == "asking":
                status.update(f"{what_entering_asks(values['run'])} {repository}")
            elif event == "serving":
                peer = values["peer"]
                report = peer.report()
                console.print(
                    f"Serving layers {report.layers.start}:{report.layers.stop} of epoch {report.epoch} of "
                    f"{repository} at {report.layers_per_second:.0f} layers a second as {peer.username}.",
                    soft_wrap=True,
                    highlight=False,
                )
                for hole in report.missing:
                    console.print(f"Nobody serves layers {hole.start}:{hole.stop}: {fill_command(repository, hole)}")
                events.happened(
                    "serving", peer=peer.peer_id, rate=report.layers_per_second, epoch=report.epoch,
                    layers=[report.layers.start, report.layers.stop], addresses=values["addresses"],
                )  # fmt: skip
            elif event == "serves":
                layers = values["layers"]
                console.print(f"Now serving layers {layers.start}:{layers.stop} of epoch {values['epoch']}.")
                events.happened("serves", epoch=values["epoch"], layers=[layers.start, layers.stop])
            else:
                status.update(f"{event.capitalize()} {repository}")

        with serve_blocks(repository, network=network, options=chosen, hear=hear, check=check, takes_signals=True) as (
            peer,
            stop,
        ):
            for report in peer.follow(stop):
                missing = ", ".join(f"{hole.start}:{hole.stop}" for hole in report.missing)
                status.update(
                    f"epoch {report.epoch}  layers {report.layers.start}:{report.layers.stop}  "
                    f"{report.free_cache_bytes / 1e9:.1f} GB free" + (f"  nobody serves {missing}" if missing else "")
                )
    events.happened("left")
    console.print(f"Left {repository}.")
    if peer.found_new_generation:
        console.print(f"{repository} was rolled back: serving its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)
