"""Two real training peers on this machine, and where the time of the first one goes, for `training.py`."""

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peer_processes import run_peers

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NUM_WARMUP_EPOCHS = 2


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Where the time of one epoch of a peer went, in seconds: medians over epochs."""

    compute: float
    """Forward and backward passes."""

    averaging: float
    """The all-reduce of the gradient."""

    optimizer: float
    """8-bit LAMB on the averaged gradient."""

    waiting: float
    """The rest: finding the group, other peers' last micro-batches, progress records."""

    epoch: float
    num_steps: float
    """Micro-batches of this peer in an epoch."""


def measure_step_times(model: dict[str, Any], *, target_batch_size: int, num_epochs: int) -> StepTimes:
    """Train two peers for some epochs; return the first one's times."""
    with tempfile.TemporaryDirectory() as folder:
        settings = json.dumps(dict(model=model, target_batch_size=target_batch_size, num_epochs=num_epochs))
        run_peers(__file__, [[str(number), folder, settings] for number in range(2)], Path(folder), seconds=900)
        return StepTimes(**json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8")))


def be_a_peer(number: int, folder: Path, settings: dict[str, Any]) -> None:
    """Train on random batches and note how long the parts of every epoch take."""
    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.run.training_run import TrainingRun

    torch.set_num_threads(1)
    run = TrainingRun(
        run_id="bench", model_config=settings["model"], dataset_repository="a/b", dataset_revision="c",
        target_batch_size=settings["target_batch_size"], num_epochs=settings["num_epochs"] + NUM_WARMUP_EPOCHS,
        num_warmup_epochs=1, delay_optimizer_step=False, matchmaking_seconds=2.0,
        averaging_timeout_seconds=60.0,
    )  # fmt: skip
    compute = ComputeOptions(micro_batch_size=4, cpu_threads=1)
    with peer_of_a_benchmark(run, compute, number, folder) as (peer, batches):
        epochs = TimedContext(peer)
        for batch in batches:
            if peer.optimizer.local_epoch >= run.num_epochs:
                break
            epochs.step(batch)
        if number == 0:
            (folder / "figures.json").write_text(json.dumps(asdict(epochs.medians())))


@contextmanager
def peer_of_a_benchmark(run: Any, compute: Any, number: int, folder: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield one of two training peers, which find each other through the folder, and random batches for it."""
    from pipelines.core.peer.training_peer import TrainingPeer
    from pipelines.core.swarm.network_options import NetworkOptions
    from pipelines.core.swarm.node import open_dht, visible_addresses
    from pipelines.tasks.choice import open_task
    from pipelines.tasks.text_to_image.image_code_stream import image_code_batch

    address_file = folder / "address"
    while number > 0 and not address_file.exists():
        time.sleep(0.1)
    entry = () if number == 0 else (address_file.read_text(),)
    network = NetworkOptions(host_addresses=(LOOPBACK,))
    task, generator = open_task(run, "bench/run"), torch.Generator().manual_seed(number)

    def batches() -> Iterator[Any]:
        config, size, has_met = peer.model.config, compute.micro_batch_size, False
        while True:
            while peer.num_samples and not has_met:  # a peer that sees nobody else would end its first epoch alone
                has_met = peer.optimizer.tracker.global_progress.num_peers >= 2
                time.sleep(0.02)
            yield image_code_batch(
                torch.randint(2, config.text_vocab_size, (size, config.text_sequence_length), generator=generator),
                torch.randint(config.codebook_size, (size, config.image_grid_size**2), generator=generator),
            )

    with (
        open_dht("bench/run", entry, network, admission=None) as dht,
        TrainingPeer(task, dht, network, compute, admission=None, username=str(number), package_version="0") as peer,
    ):
        if number == 0:
            temporary = folder / "address.partial"
            temporary.write_text(visible_addresses(dht)[0])
            temporary.rename(address_file)
        yield peer, batches()


class TimedContext:
    """Steps a peer and measures the parts of its steps."""

    def __init__(self, peer: Any) -> None:
        self.peer, self._parts, self._epochs = peer, defaultdict(float), []
        optimizer = peer.optimizer.state.optimizer
        # A step that ends an epoch computes its micro-batch like all others; the model's own calls are timed apart.
        peer.model.forward = self._timed("compute", peer.model.forward)
        optimizer.step = self._timed("optimizer", optimizer.step)
        self._started = time.perf_counter()

    def step(self, batch: Any) -> None:
        """Take one step; add up its parts."""
        backward = torch.Tensor.backward
        torch.Tensor.backward = self._timed("compute", backward)
        try:
            report = self.peer.step(batch)
        finally:
            torch.Tensor.backward = backward
        self._parts["num_steps"] += 1
        if report.ended_epoch:
            self._parts["averaging"] = self.peer.optimizer.averager.last_round.seconds
            now = time.perf_counter()
            self._parts["epoch"], self._started = now - self._started, now
            self._epochs.append(dict(self._parts))
            self._parts.clear()

    def medians(self) -> StepTimes:
        """Return the medians over all epochs but the first ones."""
        epochs = self._epochs[NUM_WARMUP_EPOCHS:]
        values = {
            name: torch.tensor([epoch.get(name, 0.0) for epoch in epochs]).median().item()
            for name in ("compute", "averaging", "optimizer", "epoch", "num_steps")
        }
        known = values["compute"] + values["averaging"] + values["optimizer"]
        return StepTimes(waiting=max(0.0, values["epoch"] - known), **values)

    def _timed(self, name: str, action: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return action(*args, **kwargs)
            finally:
                self._parts[name] += time.perf_counter() - started

        return timed


if __name__ == "__main__":
    be_a_peer(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
