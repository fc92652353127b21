"""One peer of a test swarm as a process of its own: a real `TrainingPeer` on a tiny model and made-up batches.

Usage: python swarm_peer.py SETTINGS.json. Writes events to `events`, parameters to `parameters`, and its address.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch
from made_up_tasks import made_up_batch, made_up_task
from safetensors.torch import save_file

from hub_tools.processes.process_group import guard_process_group
from pipelines.core.averaging.runner import TrustedAllReduceRunner
from pipelines.core.averaging.sending_end import SendingEnd
from pipelines.core.gradients.epoch_listener import EpochListener
from pipelines.core.gradients.machine_computation import MachineComputation
from pipelines.core.peer.data_lease import DataLease
from pipelines.core.peer.entering import PeerContext, enter_run
from pipelines.core.peer.training_peer import TrainingPeer
from pipelines.core.run.block_order import BlockOrder
from pipelines.core.run.compute_options import ComputeOptions
from pipelines.core.run.span_source import WholeDataset
from pipelines.core.run.task import mean_loss
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.swarm.network_options import NetworkOptions
from pipelines.core.swarm.node import visible_addresses
from pipelines.tools.process_table import group_members


def write_event(path: Path, **values: object) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(values, time=time.time())) + "\n")


def wait_until_seen(peer: TrainingPeer, num_peers: int) -> None:
    """Start barrier: a peer that saw nobody else would end its first epoch alone.

    The wait says nothing of the peer's speed, by which others judge the weight of its gradients.
    """
    tracker = peer.optimizer.tracker
    with tracker.performance_ema.pause():
        while tracker.global_progress.num_peers < num_peers:
            time.sleep(0.02)


def strike_in_round(current_epochs: list, epoch: int, number: int, guard: int) -> None:
    """From the given epoch on, send the whole peer a signal as soon as it has sent somebody a part of its gradient."""
    current_epoch = multiprocessing.Value("q", 0)
    current_epochs.append(current_epoch)

    class StruckEnd(SendingEnd):
        async def messages_of_stream(self, *which):
            async for message in super().messages_of_stream(*which):
                yield message
                if current_epoch.value >= epoch:
                    # This process comes last: it would strike nobody any more. The guard of the group stays awake.
                    for pid in sorted(group_members(os.getpgrp()), key=os.getpid().__eq__):
                        if pid != guard:
                            os.kill(pid, number)

    TrustedAllReduceRunner.sending_type = StruckEnd


def dawdle_in_round(current_epochs: list, epoch: int, seconds: float) -> None:
    """In the round of one epoch, greet everybody and send the parts much later, as over a link that is slow."""
    current_epoch = multiprocessing.Value("q", 0)
    current_epochs.append(current_epoch)

    class DawdlingEnd(SendingEnd):
        async def messages_of_stream(self, *which):
            if current_epoch.value == epoch:
                await asyncio.sleep(seconds)
            async for message in super().messages_of_stream(*which):
                yield message

    TrustedAllReduceRunner.sending_type = DawdlingEnd


class AveragedEpochs(EpochListener):
    """Writes an event for each round that has averaged this peer's gradients."""

    def __init__(self, events: Path) -> None:
        self._events = events

    def round_averaged(self, epoch: int) -> None:
        write_event(self._events, event="averaged", epoch=epoch)


def main(settings: dict) -> None:
    guard = guard_process_group()
    torch.set_num_threads(settings.get("num_threads", 1))
    run, folder, name = TrainingRun.from_mapping(settings["run"]), Path(settings["folder"]), settings["name"]
    events = folder / f"{name}.jsonl"
    network = NetworkOptions(
        host_addresses=("/ip4/127.0.0.1/tcp/0",), client_mode=settings.get("client_mode", False),
        bandwidth_limit_mbit=settings.get("bandwidth_limit_mbit"),
    )  # fmt: skip
    threads, size = settings.get("num_threads", 1), settings["micro_batch_size"]
    compute = ComputeOptions(micro_batch_size=size, cpu_threads=threads, **settings.get("compute", {}))
    task = made_up_task(run.replace(entry_addresses=settings["entry_addresses"]))
    current_epoch = []
    if "struck_in_round_of_epoch" in settings:
        strike_in_round(current_epoch, settings["struck_in_round_of_epoch"], settings["signal"], guard)
    if "dawdles_in_round_of_epoch" in settings:
        dawdle_in_round(current_epoch, settings["dawdles_in_round_of_epoch"], seconds=18.0)
    if "transfers" in settings:
        from false_transfers import deliver_falsely

        deliver_falsely(settings["transfers"])
    if "hub_token" in settings:
        os.environ["HF_TOKEN"] = settings["hub_token"]
    new_computation = MachineComputation
    if settings.get("suits_its_machine"):
        from pipelines.features.local_computation.local_computation import LocalComputation

        new_computation = LocalComputation
    if checkpoint := settings.get("checkpoint"):
        from pipelines.features.publishing.checkpoint_tensors import loader_of
    entered = {}
    listening = DataLease(  # the records are made up: nothing is read from it
        spans=WholeDataset(BlockOrder(lambda: 1, lambda shard: [1], seed=0)), listener=AveragedEpochs(events),
        close=lambda: None, watch=lambda records, sender: contextlib.nullcontext(lambda: None),
    )  # fmt: skip
    parts = PeerContext(
        username=None if settings.get("hub_token") else name, package_version="0",
        on_event=lambda event, **values: entered.update(values) if event in ("entered", "joined") else None,
        takes_signals=True, new_computation=new_computation, open_lease=lambda *of_the_run: listening,
    )  # fmt: skip
    with enter_run(
        task, "test/run", network=network, compute=compute, parts=parts,
        fetch_checkpoint=lambda: loader_of(Path(checkpoint)) if checkpoint else None,
        anchor_keys=lambda: settings.get("anchor_keys", ()),
    ) as membership:  # fmt: skip
        peer, stop, dht, source = membership.peer, membership.stop, entered["dht"], entered["state"]
        if settings.get("ignores_refusal"):  # a peer whose user was banned need not be so kind as to leave
            stop = threading.Event()
        write_event(
            events, event="ready", addresses=visible_addresses(dht), source=source, epoch=peer.optimizer.local_epoch,
            guard=guard, instructions=torch.backends.cpu.get_cpu_capability(),
        )  # fmt: skip
        write_event(events, event="evaluation", loss=evaluate(peer, run), epoch=peer.optimizer.local_epoch)
        seeds = iter(range(settings["first_seed"], 10**9))
        if settings.get("train", True):
            train(peer, run, settings, seeds, stop, events, current_epoch)
        save_parameters(peer, folder / f"{name}.safetensors")
        averaging = peer.optimizer.averager.last_round
        write_event(
            events, event="finished", epoch=peer.optimizer.local_epoch, bytes_sent=averaging.bytes_sent,
            num_rounds=averaging.num_rounds, share_averaged=averaging.share_averaged,
            num_refused=peer.optimizer.num_refused_gradients, loss=evaluate(peer, run),
            was_declared_twice=dht.get(f"{run.swarm_id}_grad_averager.all_averagers", latest=True) is not None,
        )  # fmt: skip


def save_parameters(peer: TrainingPeer, path: Path) -> None:
    save_file({key: value.detach().clone() for key, value in peer.model.named_parameters()}, str(path))


@torch.no_grad()
def evaluate(peer: TrainingPeer, run: TrainingRun) -> float:
    batch = made_up_batch(run, seed=2**31, batch_size=16)
    device = next(peer.model.parameters()).device
    return mean_loss(peer.task, peer.model, [{name: tensor.to(device) for name, tensor in batch.items()}])


def count_trials(peer: TrainingPeer) -> list[int]:
    """Return the sizes of micro-batches that this peer measures: so far, and those to come."""
    measured, measure = [], peer.computation._trial

    def counting(size: int) -> float | None:
        measured.append(size)
        return measure(size)

    peer.computation._trial = counting
    return measured


def train(peer: TrainingPeer, run: TrainingRun, settings: dict, seeds, stop, events: Path, current_epoch: list) -> None:
    used_seeds, sizes = [], []
    measured = count_trials(peer) if settings.get("suits_its_machine") else []
    peer.computation.choose_micro_batch()

    def batches():
        for seed in seeds:
            if len(used_seeds) == 1 and settings["num_peers"] > 1:  # peers report themselves with their first gradient
                wait_until_seen(peer, settings["num_peers"])
            used_seeds.append(seed)
            sizes.append(peer.computation.micro_batch_size)
            for cell in current_epoch:
                cell.value = peer.optimizer.local_epoch
            yield made_up_batch(run, seed, sizes[-1])
            time.sleep(settings.get("seconds_per_batch", 0.0))

    num_rounds = 0
    for report in peer.train(batches(), stop):
        newest = peer.optimizer.averager.last_round
        has_averaged, num_rounds = newest.num_rounds > num_rounds and newest.share_averaged == 1.0, newest.num_rounds
        write_event(
            events, event="step", epoch=report.epoch, seed=used_seeds[-1], was_used=report.was_used,
            ended_epoch=report.ended_epoch, loss=report.loss, share_averaged=report.share_averaged,
            num_peers=report.num_peers, bytes_per_sample=report.bytes_per_sample, pid=os.getpid(),
            num_rounds=num_rounds, has_averaged=has_averaged, group_size=newest.group_size,
            bytes_sent=newest.bytes_sent,
            suspects=[[suspect.peer_id, suspect.offence.name] for suspect in newest.suspects],
            num_gathered=peer.optimizer.progress().num_gathered,
            num_refused=peer.optimizer.num_refused_gradients, num_samples=sizes[-1], num_measured=len(measured),
        )  # fmt: skip
        if (manifest := peer.optimizer.state.snapshot.manifest()) is not None:
            write_event(events, event="state", epoch=manifest.epoch, digest=manifest.digest)
        if report.ended_epoch and settings.get("save_epochs"):
            save_parameters(peer, events.parent / f"{settings['name']}-{peer.optimizer.local_epoch}.safetensors")
        if report.ended_epoch and settings.get("evaluate_epochs"):
            write_event(events, event="evaluation", loss=evaluate(peer, run), epoch=peer.optimizer.local_epoch)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
