"""What two real training peers hold at the paper's width, component by component, beside the estimate.

Usage: python tests/benchmarks/peer_memory.py [--quick] [--layers N]

Layers share their weights and a reversible step holds as much at any depth, so a few of the paper's 64 do.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch
from measurement import Row, write_results
from peer_processes import run_peers

NUM_EPOCHS = 3
SMALL = dict(
    text_vocab_size=2000, codebook_size=512, text_sequence_length=32, image_grid_size=8, hidden_size=256,
    num_attention_heads=4, num_hidden_layers=5,
)  # fmt: skip
SECONDS_BETWEEN_LOOKS = 0.25
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def measure_peer(model: dict[str, Any]) -> dict[str, Any]:
    """Train two peers for some epochs; return what the first one found."""
    with tempfile.TemporaryDirectory() as folder:
        run_peers(
            __file__, [["--peer", str(number), folder, json.dumps(model)] for number in range(2)], Path(folder),
            seconds=3000,
        )  # fmt: skip
        return json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8"))


def be_a_peer(number: int, folder: Path, model: dict[str, Any]) -> None:
    """Train on random batches; the first peer looks at its memory all the while."""
    from training_steps import peer_of_a_benchmark

    from pipelines.core.run.compute_options import ComputeOptions
    from pipelines.core.run.training_run import TrainingRun
    from pipelines.features.memory_estimate.settings import MemorySettings

    torch.set_num_threads(1)
    run = TrainingRun(
        run_id="bench", model_config=model, dataset_repository="a/b", dataset_revision="c", target_batch_size=2,
        num_epochs=NUM_EPOCHS, num_warmup_epochs=1, delay_optimizer_step=False, matchmaking_seconds=3.0,
        averaging_timeout_seconds=120.0,
    )  # fmt: skip
    compute = ComputeOptions(micro_batch_size=1, cpu_threads=1)
    with peer_of_a_benchmark(run, compute, number, folder) as (peer, batches), looks_at_memory() as looks:
        while peer.optimizer.local_epoch < run.num_epochs:
            looks.phase = "computing" if peer.num_samples else "first"
            peer.step(next(batches))
            looks.phase = "resting"
            looks.look()
        if number == 0:
            settings = MemorySettings(
                optimizer=run.optimizer, optimizer_bits=run.optimizer_bits, collaborative=True, device="cpu",
                recompute=peer.model.config.recompute,
            )  # fmt: skip
            estimate = asdict(peer.task.memory(settings).ram)
            figures = dict(components=components(peer), looks=looks.highest, estimate=estimate)
            (folder / "figures.json").write_text(json.dumps(figures))


def components(peer: Any) -> dict[str, int]:
    """Return the bytes of a peer's tensors by what they are for."""
    optimizer = peer.optimizer
    state, averager = optimizer.state, optimizer.averager
    statistics = [value for each in state.optimizer.state.values() for value in each.values()]
    with averager.get_tensors() as averaged:
        return {
            "parameters that compute": num_bytes(peer.model.parameters()),
            "gradient of a micro-batch": num_bytes(peer.model.parameters()),
            "gathered gradients": num_bytes(state.main_parameters),
            "parameters of the optimizer": num_bytes(state.optimized_parameters),
            "averaged gradients": num_bytes(averaged),
            "statistics": num_bytes(statistics),
            "state served to newcomers": state.snapshot.num_bytes,
        }


def num_bytes(tensors: Any) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class MemoryLooks:
    """The most that this process and its children held in each phase: bytes of no file, and of files."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.highest: dict[str, tuple[int, int]] = {}
        self._stop = threading.Event()

    def look(self) -> None:
        """Count what is held now; memory that processes share counts once."""
        phase, anonymous, files = self.phase, 0, 0
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            try:
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            values = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
            anonymous += values.get("Pss_Anon:", 0) + values.get("Pss_Shmem:", 0)
            files += values.get("Pss_File:", 0)
        self.highest[phase] = max(self.highest.get(phase, (0, 0)), (anonymous, files))

    def run(self) -> None:
        """Look until told to stop."""
        while not self._stop.wait(SECONDS_BETWEEN_LOOKS):
            self.look()

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()


@contextmanager
def looks_at_memory() -> Iterator[MemoryLooks]:
    """Look at this process's memory in a thread."""
    looks = MemoryLooks()
    thread = threading.Thread(target=looks.run)
    thread.start()
    try:
        yield looks
    finally:
        looks.stop()
        thread.join()


def resting_beside_tensors(figures: dict[str, Any]) -> int:
    """Return what a peer's processes hold between two steps besides its tensors, in bytes."""
    tensors = sum(size for name, size in figures["components"].items() if name != "gradient of a micro-batch")
    return figures["looks"]["resting"][0] - tensors


def rows_of(figures: dict[str, Any], processes: int, case: str) -> list[Row]:
    """Return a row for each component, for what is beside them, and for the whole, in MB.

    `processes`: what the peer's processes hold of a model so small that it does not count.
    """
    parts, looks, estimate = figures["components"], figures["looks"], figures["estimate"]
    needed = {name: size for name, size in parts.items() if name not in AVOIDABLE}
    highest = max(anonymous for anonymous, _ in looks.values())
    sizes = {
        **parts,
        "processes": processes,
        "the rest, between two steps": resting_beside_tensors(figures) - processes,
        **{f"highest, {name}": anonymous for name, (anonymous, _) in looks.items()},
        "files of libraries": max(files for _, files in looks.values()),
        **{f"estimate: {name}": size for name, size in estimate.items()},
    }
    floors = {**dict.fromkeys(AVOIDABLE, 0.0), **{name: size / 1e6 for name, size in needed.items()}}
    return [
        *(
            Row(case=case, metric=name, unit="MB", ours=size / 1e6, floor=floors.get(name))
            for name, size in sizes.items()
        ),
        # The estimate stands where other benchmarks have the peer.
        Row(
            case=case, metric="highest", unit="MB", ours=highest / 1e6,
            peer=(sum(estimate.values()) + processes) / 1e6, floor=(sum(needed.values()) + processes) / 1e6,
        ),
    ]  # fmt: skip


AVOIDABLE = ("gradient of a micro-batch", "parameters of the optimizer")
"""On a CPU gradients could be added where they are gathered, and the optimizer step the parameters that compute."""


def main() -> None:
    """Measure, print the table, write the results."""
    if sys.argv[1:2] == ["--peer"]:
        be_a_peer(int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model: a minute")
    parser.add_argument("--layers", type=int, default=8, help="of the paper's 64")
    arguments = parser.parse_args()
    layers = dict(num_hidden_layers=arguments.layers)
    small = measure_peer(SMALL)
    processes, rows = resting_beside_tensors(small), []
    for name, figures in (("small", small), *(() if arguments.quick else (("paper", measure_peer(layers)),))):
        rows += rows_of(figures, processes, f"{name}, batch 1, CPU, 2 peers; in place of a peer: the estimate")
    print(f"written to {write_results('peer_memory', rows, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
