"""A training peer that chaos can make lie, with a clock it can skew, and which records what it does.

It is what `dalle-collab join` runs, at the speed of a separate machine: on a laptop that hosts the whole swarm, a dying
peer must not make the others faster. `fork_server` runs it, with the settings file as its argument.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hub_tools.atomic_files import written_whole
from pipelines.tools.chaos.faults.fault_script import FaultKind
from pipelines.tools.chaos.faults.skewed_clock import CLOCK

if TYPE_CHECKING:  # the program that starts the swarm computes nothing itself
    import torch

    from pipelines.core.peer.reports import StepReport
    from pipelines.core.run.task import Batch

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
    """Empty in a run over the Hub alone."""

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
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    run = RunSnapshot.read(settings.repository).run
    if run.wire == "hub":
        from pipelines.tools.chaos.over_the_hub.hub_peer_in_chaos import joined_over_hub as joined
    else:
        from pipelines.tools.chaos.swarm_peer_in_chaos import joined_swarm as joined

    def write_joining(event: str, **values: object) -> None:
        if event == "joined":
            events.write("joined", epoch=values["epoch"], source=values["state"])

    compute = ComputeOptions(micro_batch_size=settings.micro_batch_size, cpu_threads=1, shuffle_buffer_size=64)
    with joined(settings, run, compute, write_joining) as membership:
        trainer = ObservedTraining(membership, settings, events)
        trainer.train()
        trainer.save_parameters(parameters_file(folder, settings.name))
        membership.stop.wait()  # others may still need this peer for their last round


class ObservedPeer(Protocol):
    """A peer in a run, whatever its wire, as far as chaos observes and changes it."""

    task: Any
    """A text-to-image task."""

    model: "torch.nn.Module"
    stop: threading.Event

    @property
    def epoch(self) -> int:
        """The run's epoch as the peer has it."""

    def train(self, through: "Callable[[Iterator[Batch]], Iterator[Batch]]") -> "Iterator[StepReport]":
        """Train on batches that pass `through`."""

    def attack(self, name: str) -> None:
        """Make this attack from now on; none if empty."""

    def parameters(self) -> "Mapping[str, torch.Tensor]":
        """Return those of the state that all peers have."""

    def sent_and_kept(self, report: "StepReport", num_samples: int) -> tuple[int, int]:
        """Return how many of the samples not yet accounted for the newest epoch's round took, and how many not."""

    def round_figures(self) -> Mapping[str, object]:
        """Return `share_averaged`, `group_size`, `round_seconds` and `suspects` of the newest epoch's round, and
        `digest` of the state after it, if all peers' is equal."""


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

    def __init__(self, peer: ObservedPeer, settings: ChaoticPeerSettings, events: EventLog) -> None:
        self.peer, self._settings, self._events, self._batch = peer, settings, events, _evaluation_batch(peer.task)
        self._control = Control()
        self._num_samples = 0

    def train(self) -> None:
        """Train until the control file's last epoch is reached or the peer must stop."""
        threading.Thread(target=self._watch, name="control", daemon=True).start()
        for report in self.peer.train(self._paced):
            self._num_samples += self._settings.micro_batch_size if report.was_used else 0
            if report.ended_epoch:
                self._write_epoch(report)

    def save_parameters(self, path: Path) -> None:
        """Save the parameters once they are final."""
        from safetensors.torch import save_file

        tensors = {name: value.detach().clone() for name, value in self.peer.parameters().items()}
        with written_whole(path) as temporary:
            save_file(tensors, str(temporary))
        self._events.write("finished", epoch=self.peer.epoch, loss=self._evaluate())

    def _paced(self, stream: "Iterator[Batch]") -> "Iterator[Batch]":
        ready_at = time.monotonic()
        for batch in stream:
            limit = self._control.finish_at_epoch
            if limit and self.peer.epoch >= limit:
                return
            yield self._noise_like(batch) if self._control.attack == FaultKind.NOISE else batch
            ready_at = max(ready_at + self._settings.seconds_per_batch, time.monotonic())
            time.sleep(max(0.0, ready_at - time.monotonic()))

    def _noise_like(self, batch: "Batch") -> "Batch":
        import torch

        size = self.peer.task.layout.codebook_size
        return dict(batch, image_codes=torch.randint_like(batch["image_codes"], size))

    def _watch(self) -> None:
        path = control_file(Path(self._settings.folder), self._settings.name)
        while not self.peer.stop.wait(CONTROL_INTERVAL_SECONDS):
            control = read_control(path)
            if control != self._control:
                CLOCK.skew(control.clock_skew_seconds)
                self.peer.attack(control.attack)
                self._control = control

    def _write_epoch(self, report: "StepReport") -> None:
        num_sent, num_kept = self.peer.sent_and_kept(report, self._num_samples)
        self._events.write(
            "epoch",
            epoch=report.epoch,
            new_epoch=self.peer.epoch,
            num_samples=num_sent,
            attack=self._control.attack,
            loss=self._evaluate(),
            **self.peer.round_figures(),
        )
        self._num_samples = num_kept

    def _evaluate(self) -> float:
        from pipelines.core.run.task import mean_loss

        return mean_loss(self.peer.task, self.peer.model, [self._batch])


def _evaluation_batch(task: Any) -> "Batch":
    """Return records in no shard, the same for all peers."""
    import torch

    from pipelines.tasks.text_to_image.image_code_stream import image_code_batch
    from pipelines.tools.chaos.tiny_run import numbered_records

    numbers = range(FIRST_EVALUATION_RECORD, FIRST_EVALUATION_RECORD + NUM_EVALUATION_RECORDS)
    captions, codes = numbered_records(numbers, task.layout)
    return image_code_batch(task.processor(text=captions)["input_ids"], torch.from_numpy(codes).long())


if __name__ == "__main__":
    main(ChaoticPeerSettings(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
