"""Running a peer in its own process group: set-up, signals, progress on the terminal, events for programs."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from pipelines.command_line.terminal.peer_events import EventFile
from pipelines.training.peer.process_group import (
    START_AGAIN_EXIT_CODE,
    guard_process_group,
    is_worker,
    run_as_worker,
    seconds_since_start,
)
from pipelines.training.run.peer_options import PeerOptions

if TYPE_CHECKING:
    from pipelines.training.auxiliary.auxiliary_options import AuxiliaryOptions

SECONDS_BETWEEN_LINES = 5.0


def run_training_peer(repository: str, options: PeerOptions, *, events: EventFile) -> None:
    """Join a run and train until it ends, the options' limit is reached, or a signal asks to stop."""
    _become_worker()
    import dataclasses

    import torch

    from pipelines.command_line.terminal.check_list import report_obstacles
    from pipelines.command_line.terminal.peer_entry import admitted, stop_when_refused, who_may_join
    from pipelines.doctor.examination import quick_checks
    from pipelines.doctor.machine import raise_open_files
    from pipelines.swarm.node import open_dht
    from pipelines.torch_devices import torch_device
    from pipelines.training.peer.generation_watch import watching_generation
    from pipelines.training.peer.pausing import pause_on_signals
    from pipelines.training.peer.training_peer import RunFinishedError, TrainingPeer, finished_message
    from pipelines.training.repository.snapshot import RunSnapshot
    from pipelines.training.run.training_run import stable_seed
    from pipelines.training.run.versions import package_version
    from pipelines.training.swarm_optimizer.hivemind_options import reply_seconds
    from pipelines.training.tasks.text_to_image.image_code_stream import dataset_layout, prefetched, stream_batches
    from pipelines.training.tasks.text_to_image.model import read_processor
    from pipelines.training.tasks.text_to_image.run_creation import check_codec_fits, check_dataset_fits

    console = _start_logging()
    snapshot = RunSnapshot.read(repository)
    run, run_state = snapshot.run, snapshot.run_state
    if run_state is not None and run_state["epoch"] >= run.num_epochs:
        raise RunFinishedError(finished_message(run))
    if not run.entry_addresses:
        raise ValueError(
            f"{repository} names no entry address yet. Its organiser starts the auxiliary peer, which announces one: "
            f"dalle-collab run assist {repository}"
        )
    layout = dataset_layout(run.dataset_repository, run.dataset_revision)
    processor = read_processor(repository, snapshot.commit)
    check_codec_fits(layout, processor.image_codec_fingerprint, run.dataset_repository)
    check_dataset_fits(run, layout)
    device = torch_device(options.device)
    options = dataclasses.replace(options, device=device, num_devices=options.num_devices or _num_devices(device))
    report_obstacles(console, repository, quick_checks(snapshot, options))
    raise_open_files()
    torch.set_num_threads(options.cpu_threads or os.cpu_count() or 1)
    username = _username()

    with (
        admitted(console, run, repository, options) as (options, admission),
        open_dht(repository, run.entry_addresses, options, admission, reply_seconds=reply_seconds(run)) as dht,
        TrainingPeer(run, dht, options, username=username, package_version=package_version()) as peer,
        _stop_on_signals() as stop,
        pause_on_signals(peer.pause_switch),
        watching_generation(repository, run, stop) as watch,
    ):
        stop_when_refused(admission, stop)
        peer.pause_switch.on_rest = lambda rests: events.happened("paused" if rests else "resumed")
        events.happened("entered")
        with console.status("Looking for the newest training state") as status:
            source = peer.synchronise(
                lambda: snapshot.download_checkpoint() if run_state else None,
                (lambda progress: status.update(str(progress))) if console.is_terminal else None,
            )
        console.print(f"Joined {repository} as {username} at epoch {peer.optimizer.local_epoch} (state: {source}).")
        events.happened(
            "joined", username=username, epoch=peer.optimizer.local_epoch, num_epochs=run.num_epochs, state=source
        )
        console.print(who_may_join(run, repository))
        console.print(f"To pause it: kill -USR1 {os.getpid()}; to go on: kill -USR2 {os.getpid()}", highlight=False)
        batch_size = peer.choose_micro_batch() * options.num_devices
        seed = stable_seed(run.run_id, dht.peer_id)
        with prefetched(
            lambda: stream_batches(
                run.dataset_repository,
                run.dataset_revision,
                processor,
                num_codes=layout.num_codes,
                batch_size=batch_size,
                seed=seed,
                shuffle_buffer_size=options.shuffle_buffer_size,
                held_out_share=run.held_out_share,
            ),
            batch_size,
            stop,
        ) as batches:
            _show_training(console, peer.train(batches, stop), run.num_epochs, events)
    events.happened("left", num_samples=peer.num_samples)
    console.print(f"Left {repository}: contributed {peer.num_samples} samples.")
    if watch.found_new_generation:
        console.print(f"{repository} was rolled back: joining its new generation.")
        raise typer.Exit(START_AGAIN_EXIT_CODE)


def run_auxiliary_peer(
    repository: str, options: PeerOptions, assistance: "AuxiliaryOptions", *, events: EventFile
) -> None:
    """Assist a run until it is finished and published, or a signal asks to stop; publish what is held at the end."""
    from pipelines.training.metrics.trackers import check_trackers

    check_trackers(assistance.trackers)
    _become_worker()
    import torch

    from pipelines.command_line.terminal.peer_entry import admitted, stop_when_refused, who_may_join
    from pipelines.swarm.node import SwarmUnreachableError, open_dht
    from pipelines.training.auxiliary.assembly import assembled_auxiliary_peer
    from pipelines.training.auxiliary.hub_publisher import RunRolledBackError
    from pipelines.training.peer.training_peer import RunFinishedError, finished_message
    from pipelines.training.repository.snapshot import RunSnapshot
    from pipelines.training.swarm_optimizer.hivemind_options import reply_seconds
    from pipelines.training.tasks.text_to_image.model import read_processor

    console = _start_logging()
    torch.set_num_threads(1)
    snapshot = RunSnapshot.read(repository)
    run, run_state, processor = snapshot.run, snapshot.run_state, read_processor(repository, snapshot.commit)
    if run_state is not None and run_state["epoch"] >= run.num_epochs:
        raise RunFinishedError(finished_message(run))
    with contextlib.ExitStack() as stack:
        options, admission = stack.enter_context(admitted(console, run, repository, options))
        patience = dict(reply_seconds=reply_seconds(run))
        try:
            dht = stack.enter_context(open_dht(repository, run.entry_addresses, options, admission, **patience))
        except SwarmUnreachableError:
            if not run.entry_addresses:
                raise
            console.print("None of the announced entry addresses answers: starting the swarm anew from here.")
            dht = stack.enter_context(open_dht(repository, (), options, admission, **patience))
        parts = assembled_auxiliary_peer(repository, run, dht, processor, assistance)
        peer, trackers = stack.enter_context(parts)
        stop = stack.enter_context(_stop_on_signals())
        stop_when_refused(admission, stop)
        epoch = peer.restore(snapshot.download_checkpoint() if run_state else None)
        addresses = peer.announce()
        console.print(f"Assisting {repository} from epoch {epoch}; entry addresses: {', '.join(addresses)}")
        console.print(who_may_join(run, repository))
        try:
            _show_assistance(console, peer.follow(stop), trackers, events)
        except RunRolledBackError as error:
            console.print(f"{error} Starting again.")
            raise typer.Exit(START_AGAIN_EXIT_CODE) from error
        if (commit := peer.finish()) is not None:
            console.print(f"Published epoch {peer.publisher.published_epoch} as commit {commit[:12]} before leaving.")


def examine_machine(repository: str, options: PeerOptions, *, as_json: bool, strict: bool, events: EventFile) -> None:
    """Print whether a peer with these options can join the run from this machine, and leave with an exit code."""
    _become_worker()
    import dataclasses

    from pipelines.command_line.terminal.check_list import show_checks
    from pipelines.doctor.examination import run_checks
    from pipelines.torch_devices import torch_device

    _start_logging()
    options = dataclasses.replace(options, device=torch_device(options.device))
    show_checks(
        f"{repository} on this machine",
        lambda announce: run_checks(repository, options, announce=announce),
        as_json=as_json,
        strict=strict,
        events=events,
    )


def examine_run(repository: str, options: PeerOptions, *, as_json: bool, strict: bool) -> None:
    """Print whether a run is set up so that it lasts, and leave with an exit code."""
    _become_worker()
    from pipelines.command_line.terminal.check_list import show_checks
    from pipelines.doctor.run_examination import run_checklist

    _start_logging()
    show_checks(
        f"the run {repository}",
        lambda announce: run_checklist(repository, options, announce=announce),
        as_json=as_json,
        strict=strict,
        events=EventFile(None),
    )


def _become_worker() -> None:
    """Continue only in a process group of our own; in the process that the person started, wait for that group."""
    if not is_worker():
        while (code := run_as_worker(sys.argv[1:])) == START_AGAIN_EXIT_CODE:
            pass
        raise typer.Exit(code)
    guard_process_group()
    # hivemind 1.1.12 compiles its mixture-of-experts layers when it is imported; that is nothing to a volunteer.
    warnings.filterwarnings("ignore", message="`torch.jit", category=FutureWarning)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. Enter it after hivemind has forked: its children must die of them."""
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _show_training(console: Console, reports: Iterator[Any], num_epochs: int, events: EventFile) -> None:
    last_line, is_counted = 0.0, False
    with console.status("training") as status:
        for report in reports:
            if report.loss is None:
                continue
            if report.was_used and not is_counted:
                is_counted = True
                console.print(f"First gradient counted {seconds_since_start():.0f} s after the start.", highlight=False)
            text = (
                f"epoch {report.epoch}/{num_epochs}  loss {report.loss:.4f}  {report.num_peers} peers  "
                f"{report.samples_per_second:.1f} samples/s  share averaged {report.share_averaged:.0%}  "
                f"yours {report.num_samples} samples, {report.bytes_per_sample / 1e3:,.1f} kB sent for each"
            )
            status.update(text)
            events.step(report)
            if report.ended_epoch and not console.is_terminal and time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                console.print(text)
                last_line = time.monotonic()


def _show_assistance(console: Console, reports: Iterator[Any], trackers: Any, events: EventFile) -> None:
    import dataclasses

    with console.status("waiting for trainers") as status:
        for report in reports:
            loss = f"{report.summary.loss:.4f}" if report.summary else "-"
            status.update(
                f"swarm epoch {report.swarm_epoch}  held {report.held_epoch}  published {report.published_epoch}  "
                f"{report.num_trainers} trainers  loss {loss}"
                + (f"  {report.num_waiting} checkpoints wait for the Hub" if report.num_waiting else "")
                + ("" if report.is_publisher else "  (another auxiliary peer publishes)")
            )
            events.write_report(report)
            if report.summary is not None:
                trackers.log_epoch(dataclasses.asdict(report.summary))
            if report.published is not None:
                console.print(f"Published epoch {report.published_epoch} as commit {report.published[:12]}.")


def _num_devices(device: str) -> int:
    """Return how many devices a peer uses if nobody says: all GPUs, unless one was named."""
    import torch

    return torch.cuda.device_count() if device == "cuda" else 1


def _username() -> str:
    """Return the Hub user's name, or `anonymous` without a token; a token that is refused is an error."""
    from huggingface_hub import get_token, whoami

    return whoami()["name"] if get_token() else "anonymous"


def _start_logging() -> Console:
    console = Console(stderr=True)
    handler = RichHandler(console=console, show_path=False, markup=False, rich_tracebacks=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    logging.getLogger("pipelines").setLevel(logging.INFO)
    # A state that was taken over brings the schedule forward without steps of one's own: that is the intention.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
    if "HIVEMIND_LOGLEVEL" not in os.environ:
        # A peer that vanishes is an everyday event here, reported by us in one line; hivemind prints its traceback.
        logging.getLogger("hivemind").setLevel(logging.CRITICAL)
    return console
