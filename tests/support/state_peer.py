"""One peer of a test of the state transfer as a process of its own: an honest donor, a liar, a newcomer, or a probe.

Usage: python state_peer.py SETTINGS.json. Donors hold a state that their settings decide, and do not train. Writes
events, and the state that it holds to NAME.safetensors.
"""

import asyncio
import json
import sys
import threading
import time
from functools import partial
from pathlib import Path

import torch
from made_up_tasks import made_up_task
from safetensors.torch import load_file, save_file
from swarm_peer import write_event

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.epoch.acquaintances import Acquaintances
from pipelines.core.epoch.hivemind_options import transfer_limits
from pipelines.core.epoch.progress_tracking import SwarmProgressTracker
from pipelines.core.optimizers.choice import optimizer_parts
from pipelines.core.peer.pausing import stop_on_signals
from pipelines.core.peer.training_peer import TrainingPeer
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.anchors import AnchorWatch
from pipelines.core.state.digest import make_manifest
from pipelines.core.state.download import StateDownloadError
from pipelines.core.state.exchange import StateExchange, StateService
from pipelines.core.state.training_state import TrainingState
from pipelines.core.state.transfer import StateTransfer
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import open_dht, visible_addresses
from pipelines.core.swarm.records import STATES, SwarmRecords
from pipelines.tasks.text_to_image.model import initial_model


class SlowService(StateService):
    """Sends its state slowly, so that a test can do something in the middle of a download."""

    seconds_per_chunk = 0.15

    async def _hand_out(self, request, reader):
        async for chunk in super()._hand_out(request, reader):
            await asyncio.sleep(self.seconds_per_chunk)
            yield chunk


class ForgingService(StateService):
    """Names the digest of the swarm's state and sends other bytes."""

    async def _hand_out(self, request, reader):
        async for chunk in super()._hand_out(request, reader):
            if request["want"] == "tensors":
                chunk[0] ^= 1
            yield chunk


class CarelessState(TrainingState):
    """Offers its values without looking at them."""

    def take_snapshot(self):
        snapshot = self.snapshot
        snapshot.begin()
        snapshot.fill(self.named_state())
        hashes = [snapshot.hash(spec) for spec in snapshot.layout]
        snapshot.complete(make_manifest(snapshot.swarm_id, self.state_epoch, snapshot.layout, hashes))
        return snapshot.manifest()


SERVICES = {"slow": SlowService, "forger": ForgingService}


def start_exchange(run, dht, kind):
    state = (CarelessState if kind == "nan" else TrainingState)(
        run.swarm_id, **optimizer_parts(run, initial_model(run))
    )
    service = SERVICES.get(kind, StateService)(state.snapshot)
    return StateExchange(state, dht, run.swarm_id, admission=None, service=service)


def make_up_state(state, kind, epoch):
    """Make optimizer steps along gradients that a seed decides; a liar's state differs a little."""
    generator = torch.Generator().manual_seed(11)
    parameters = state.optimized_parameters
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.rand(parameter.shape, generator=generator) - 0.5
        state.optimizer.step()
    if kind == "liar":
        parameters[0].data[0] += 1e-3
    if kind == "nan":
        parameters[0].data[0] = float("nan")
    state.set_epoch(epoch)


def wait_until(is_so):
    while not is_so():
        time.sleep(0.02)


def donate(run, dht, settings, events):
    kind, epoch, records = settings["kind"], settings["epoch"], SwarmRecords(dht, run.swarm_id, admission=None).open()
    exchange = start_exchange(run, dht, kind)
    make_up_state(state := exchange.state, kind, epoch)
    tracker = SwarmProgressTracker(
        dht=dht,
        prefix=run.swarm_id,
        admissions=records.admissions,
        acquaintances=Acquaintances(),
        target_batch_size=10**6,
        start=True,
    )
    tracker.report_local_progress(local_epoch=epoch, samples_accumulated=1)
    nobody = AnchorWatch(records, run.swarm_id, tuple)
    StateTransfer(exchange, records, transfer_limits(run), Acquaintances(), nobody).share()
    wait_until(lambda: dht.peer_id.to_base58() in {claim.peer_id for claim in records.read(STATES).values()})
    wait_until(lambda: len(records.trainers()) > 0)
    save_file({name: t.clone() for name, t in state.named_state().items()}, settings["state_file"])
    digest = state.snapshot.manifest().digest
    write_event(events, event="ready", addresses=visible_addresses(dht), peer_id=dht.peer_id.to_base58(), digest=digest)
    threading.Event().wait()


def probe(run, dht, settings, events):
    """Ask the peers that the test names for their state, whatever the votes say, or wait until they offer one."""
    exchange, records = start_exchange(run, dht, "honest"), SwarmRecords(dht, run.swarm_id, admission=None).open()
    limits = transfer_limits(run).download
    write_event(events, event="ready", addresses=visible_addresses(dht))
    for order in orders_in(Path(settings["orders"])):
        if "await_offers_of" in order:
            wanted = set(order["await_offers_of"])
            wait_until(lambda wanted=wanted: wanted <= {claim.peer_id for claim in records.read(STATES).values()})
            write_event(events, event="offers_found")
            continue
        try:
            exchange.download(**order, limits=limits, total_seconds=20.0, show=lambda done, of: None)
            write_event(events, event="probed", donor=order["donors"][0], got=True, moved_on=[])
        except StateDownloadError as error:
            moved_on = list(error.report.moved_on)
            write_event(events, event="probed", donor=order["donors"][0], got=False, moved_on=moved_on)


def orders_in(path):
    """Yield the lines that the test appends to a file."""
    num_done = 0
    while True:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        for line in lines[num_done:]:
            if line.endswith("\n"):
                num_done += 1
                yield json.loads(line)
        time.sleep(0.02)


def load_checkpoint(path, state, model, optimizer):
    """See `LoadCheckpoint`."""
    kept = load_file(path)
    for name, tensor in state.named_state().items():
        tensor.copy_(kept[name])
    state.apply_parameters()
    return int(kept["epoch"])


def join(run, dht, settings, events, options):
    task, compute = made_up_task(run), ComputeOptions()
    who = dict(username=settings["name"], package_version="0")
    with TrainingPeer(task, dht, options, compute, admission=None, **who) as peer:
        state, state_transfer = peer.optimizer.state, peer.optimizer.state_transfer
        write_event(events, event="started", peer_id=dht.peer_id.to_base58())
        started = time.monotonic()

        def show(progress):
            share = progress.num_bytes / progress.num_bytes_total
            write_event(events, event="progress", share=share, is_half=(is_half := 0.4 < share < 0.9))
            if is_half and "waits_at_half_for" in settings:
                wait_until(Path(settings["waits_at_half_for"]).exists)

        with stop_on_signals() as stop:
            state_transfer.is_to_stop = stop.is_set
            source = peer.synchronise(lambda: partial(load_checkpoint, Path(settings["checkpoint"]), state), show)
        if stop.is_set():
            write_event(events, event="stopped", source=source, shares=state_transfer.exchange.shares)
            return
        seconds, taken = time.monotonic() - started, state_transfer.last_taken
        save_file({name: t.clone() for name, t in state.named_state().items()}, settings["state_file"])
        if source == "peers":
            save_file(dict(state.named_state(), epoch=torch.tensor(state.state_epoch)), settings["checkpoint"])
        wait_until(state.snapshot.manifest)
        write_event(
            events, event="ready", addresses=visible_addresses(dht), source=source, epoch=state.state_epoch,
            seconds=seconds, digest=state.snapshot.manifest().digest,
            named=sorted(taken.report.liars) if taken else [],
            outvoted=list(taken.verdict.outvoted) if taken else [], state_bytes=state.snapshot.num_bytes,
            received_bytes=taken.report.num_bytes if taken else 0, failures=taken.report.failures if taken else {},
        )  # fmt: skip
        threading.Event().wait()


def main(settings):
    guard_process_group()
    torch.set_num_threads(1)
    run, folder, name = TrainingRun.from_mapping(settings["run"]), Path(settings["folder"]), settings["name"]
    settings = dict(settings, state_file=str(folder / f"{name}.safetensors"))
    events = folder / f"{name}.jsonl"
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    with open_dht("test/run", settings["entry_addresses"], options, admission=None) as dht:
        if settings["role"] == "newcomer":
            join(run, dht, settings, events, options)
        else:
            {"donor": donate, "probe": probe}[settings["role"]](run, dht, settings, events)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
