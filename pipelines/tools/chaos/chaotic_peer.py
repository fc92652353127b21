"""A training peer that chaos can make lie, with a clock it can skew, and which records what it does.

It is what `dalle-collab join` runs, at the speed of a separate machine: on a laptop that hosts the whole swarm, a dying
peer must not make the others faster. `fork_server` runs it, with the settings file as its argument.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub_tools.atomic_files import written_whole
from pipelines.tools.chaos.faults.fault_script import FaultKind
from pipelines.tools.chaos.faults.skewed_clock import CLOCK

CONTROL_INTERVAL_SECONDS = 0.2
NUM_EVALUATION_RECORDS = 32
FIRST_EVALUATION_RECORD = 100_000


@dataclass(frozen=True, kw_only=True)
class ChaoticPeerSettings:
    """What the chaos run tells a trainer at its start."""

    name: str
    folder: str
    """Folder of events, parameters and the control file."""

    repository: str
    host_address: str
    announce_address: str
    micro_batch_size: int
    seconds_per_batch: float
    """Speed of the machine that this peer stands for."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class Control:
    """What the chaos run wants of a trainer while it runs; the file is polled a few times a second."""

    attack: str = ""
    """Name of the attack that this peer makes; none if empty."""

    clock_skew_seconds: float = 0.0
    finish_at_epoch: int = 0
    """Epoch at which the peer stops and saves its parameters; 0: continue."""


def control_file(folder: Path, name: str) -> Path:
    """Return the file through which a trainer is told what to do."""
    return folder / f"{name}.control.json"


def settings_file(folder: Path, name: str) -> Path:
    """Return the file of a trainer's settings."""
    return folder / f"{name}.settings.json"


def events_file(folder: Path, name: str) -> Path:
    """Return the file of a trainer's events, one JSON object per line."""
    return folder / f"{name}.jsonl"


def parameters_file(folder: Path, name: str) -> Path:
    """Return the file of a trainer's last parameters."""
    return folder / f"{name}.safetensors"


def read_control(path: Path) -> Control:
    """Read a control file; a missing one means the defaults."""
    return Control(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Control()


def main(settings: ChaoticPeerSettings) -> None:
    """Join, train at the given speed, evaluate after every epoch, and stop when the control file says so."""
    from hub_tools.processes.process_group import guard_process_group

    guard = guard_process_group()
    folder = Path(settings.folder)
    events = EventLog(events_file(folder, settings.name))
    events.write("started", pid=os.getpid(), guard=guard)
    from pipelines.core.peer.entering import PeerContext
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.run.training_run import stable_seed
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.joining.join_run import join_run
    from pipelines.tasks.choice import open_task
    from pipelines.tools.chaos.faults.hostile_peers import HostileGradientAverager

    while not (run := RunSnapshot.read(settings.repository).run).entry_addresses:
        time.sleep(0.5)  # the auxiliary peer is still starting
    network = NetworkOptions(host_addresses=(settings.host_address,), announce_addresses=(settings.announce_address,))
    compute = ComputeOptions(micro_batch_size=settings.micro_batch_size, cpu_threads=1, shuffle_buffer_size=64)
    parts = PeerContext(
        username=settings.name,
        package_version="chaos",
        on_event=lambda event, **values: _write_joining(events, event, values),
        takes_signals=True,
        # Honest until told otherwise; nobody averages parts in a sparse run, so there it has nothing to lie about.
        gradient_averager_type=None if run.synchronisation == "sparse" else HostileGradientAverager,
    )
    with join_run(
        settings.repository, open_task, network=network, compute=compute, parts=parts, seed=stable_seed(settings.seed)
    ) as membership:
        peer, stop = membership.peer, membership.stop
        trainer = ObservedTraining(peer, settings, events, _evaluation_batch(peer.task))
        trainer.train(membership)
        trainer.save_parameters(parameters_file(folder, settings.name))
        stop.wait()  # others may still need this peer for their last round


def _write_joining(events: "EventLog", event: str, values: dict[str, Any]) -> None:
    if event == "joined":
        events.write("joined", epoch=values["epoch"], source=values["state"])


class EventLog:
    """Appends events to a file, with the true time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, **values: object) -> None:
        """Append one event."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(values, event=event, time=CLOCK.true_time())) + "\n")


class ObservedTraining:
    """Trains a peer at a given speed, under control, and writes an event for every finished epoch."""

    def __init__(self, peer: Any, settings: ChaoticPeerSettings, events: EventLog, batch: Any) -> None:
        self.peer, self._settings, self._events, self._batch = peer, settings, events, batch
        self._control = Control()
        self._num_rounds = self._num_samples = self._num_in_round = 0

    def train(self, membership: Any) -> None:
        """Train until the control file's last epoch is reached or the peer must stop."""
        threading.Thread(target=self._watch, args=(membership.stop,), name="control", daemon=True).start()
        for report in membership.train(self._paced):
            self._num_samples += self._settings.micro_batch_size if report.was_used else 0
            if report.ended_epoch:
                self._write_epoch(report)

    def save_parameters(self, path: Path) -> None:
        """Save the parameters once they are final."""
        from safetensors.torch import save_file

        tensors = {name: value.detach().clone() for name, value in self.peer.model.named_parameters()}
        with written_whole(path) as temporary:
            save_file(tensors, str(temporary))
        self._events.write("finished", epoch=self.peer.optimizer.local_epoch, loss=self._evaluate())

    def _paced(self, stream: Iterator[Any]) -> Iterator[Any]:
        ready_at = time.monotonic()
        for batch in stream:
            limit = self._control.finish_at_epoch
            if limit and self.peer.optimizer.local_epoch >= limit:
                return
            yield self._noise_like(batch) if self._control.attack == FaultKind.NOISE else batch
            ready_at = max(ready_at + self._settings.seconds_per_batch, time.monotonic())
            time.sleep(max(0.0, ready_at - time.monotonic()))

    def _noise_like(self, batch: Any) -> Any:
        import torch

        size = self.peer.task.layout.codebook_size
        return dict(batch, image_codes=torch.randint_like(batch["image_codes"], size))

    def _watch(self, stop: threading.Event) -> None:
        from pipelines.tools.chaos.faults.hostile_peers import Attack

        path = control_file(Path(self._settings.folder), self._settings.name)
        while not stop.wait(CONTROL_INTERVAL_SECONDS):
            control = read_control(path)
            if control != self._control:
                CLOCK.skew(control.clock_skew_seconds)
                self.peer.optimizer.grad_averager.attack = Attack(control.attack)
                self._control = control

    def _write_epoch(self, report: Any) -> None:
        progress = self.peer.optimizer.progress()
        averaging = progress.gradient_round
        was_averaged = averaging.num_rounds > self._num_rounds
        num_kept = progress.num_gathered  # of a missed round, for the next one
        num_sent = self._num_samples - num_kept
        if self.peer.run.delay_gradient_averaging:  # the finished round had the samples of the previous epoch
            num_sent, self._num_in_round = self._num_in_round, num_sent if progress.has_begun_round else 0
        self._events.write(
            "epoch",
            epoch=report.epoch,
            new_epoch=progress.epoch,
            num_samples=num_sent,
            share_averaged=averaging.share_averaged if was_averaged else 0.0,
            group_size=averaging.group_size if was_averaged else 1,
            round_seconds=averaging.seconds if was_averaged else 0.0,
            attack=self._control.attack,
            suspects=[suspect.peer_id for suspect in averaging.suspects],
            loss=self._evaluate(),
        )
        self._num_rounds, self._num_samples = averaging.num_rounds, num_kept

    def _evaluate(self) -> float:
        from pipelines.core.run.task import mean_loss

        return mean_loss(self.peer.task, self.peer.model, [self._batch])


def _evaluation_batch(task: Any) -> Any:
    """Return records in no shard, the same for all peers."""
    import torch

    from pipelines.tasks.text_to_image.image_code_stream import image_code_batch
    from pipelines.tools.chaos.tiny_material import numbered_records

    numbers = range(FIRST_EVALUATION_RECORD, FIRST_EVALUATION_RECORD + NUM_EVALUATION_RECORDS)
    captions, codes = numbered_records(numbers, task.layout)
    return image_code_batch(task.processor(text=captions)["input_ids"], torch.from_numpy(codes).long())


if __name__ == "__main__":
    main(ChaoticPeerSettings(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
