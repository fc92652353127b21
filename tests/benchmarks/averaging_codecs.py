"""What the codecs of averaging do to a run's gradients, and what the default one costs in loss.

    python tests/benchmarks/averaging_codecs.py [--quick]

Two simulated peers train the demo's model on the demo's scenes for 300 epochs of 64 samples: with the
default codec, and averaging float32. Pairs of runs have equal initial parameters and batches. Early, in the middle and
at the end of a float32 run, each codec takes the peers' gradients, and the round as a whole: each part on its way to
the reducer, and the answer. Only tensors that a run sends in 8 bits count. The peer is hivemind's uniform codec, which
runs could choose until it was removed; the floor is float16.

Finished runs are kept in `results/averaging_codecs_cells.json`: running it again continues, or only prints the table.
To measure anew, delete that file.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from hivemind.compression import CompressionBase, CompressionInfo, Float16Compression, NoCompression
from hivemind.compression.quantization import Uniform8BitQuantization
from hivemind.proto import runtime_pb2
from measurement import RESULTS, Row, write_results
from simulated_runs import DEMO_PICTURES, Material, pictures
from swarm_simulator import Cells, SimulatedSwarm, Vector, averaged

from pipelines.core.averaging.wire.codec import Blockwise8BitCodec
from pipelines.core.run.task import mean_loss
from pipelines.core.run.training_run import TrainingRun

NUM_PEERS, BATCH_SIZE = 2, 64
NUM_EPOCHS, WARMUP_SHARE = 300, 15
"""One epoch in so many warms up."""

SEEDS = (1, 2, 3)
CODECS = {
    "block-wise 8 bits": Blockwise8BitCodec,
    "uniform 8 bits": Uniform8BitQuantization,
    "float16": Float16Compression,
}
MOMENTS = {"early": 1 / 30, "in the middle": 1 / 2, "at the end": 1.0}
"""As shares of the epochs."""

GROUPS = {True: "embedding", False: "the rest"}


def trained(material: Material, compression: str, seed: int, num_epochs: int) -> dict[str, Any]:
    """Train; return the held-out loss, and with float32 averaging the codecs' errors."""
    model = dict(material.settings["model_config"], **DEMO_PICTURES)
    task = material.task(
        batch_size=BATCH_SIZE, model_config=model, num_epochs=num_epochs, seed=seed,
        num_warmup_epochs=num_epochs // WARMUP_SHARE,
        averaging_compression=compression,
    )  # fmt: skip
    batches, errors = material.batches(seed, BATCH_SIZE // NUM_PEERS), {}
    epochs = {max(1, round(share * num_epochs)): moment for moment, share in MOMENTS.items()}
    with SimulatedSwarm(task, NUM_PEERS) as swarm:
        names = _names(swarm)
        while swarm.num_epochs < num_epochs:
            swarm.epoch([[next(batches)] for _ in range(NUM_PEERS)])
            if compression == "none" and swarm.num_epochs in epochs:
                errors[epochs[swarm.num_epochs]] = codec_errors(swarm.last_gradients, names, swarm.run)
        return dict(loss=mean_loss(task, swarm.model, material.held_out_batches()), errors=errors)


def _names(swarm: SimulatedSwarm) -> list[str]:
    """Return the parameters' names in the order in which they are averaged."""
    names = {id(parameter): name for name, parameter in swarm.model.named_parameters()}
    return [names[id(parameter)] for parameter in swarm.peers[0].state.main_parameters]


def codec_errors(
    vectors: Sequence[Vector], names: Sequence[str], run: TrainingRun
) -> dict[str, dict[str, list[float]]]:
    """Return the relative errors by group and codec: of one peer's gradient, the mean of all; and of the average."""
    found = {}
    for is_embedding, group in GROUPS.items():
        chosen = [
            number
            for number, name in enumerate(names)
            if ("embedding" in name) == is_embedding and vectors[0][number].numel() >= run.min_8bit_elements
        ]
        sent = [[vector[number] for number in chosen] for vector in vectors]
        found[group] = {name: _errors(kind(), sent, run) for name, kind in CODECS.items()}
    return found


def _errors(codec: CompressionBase, sent: Sequence[Vector], run: TrainingRun) -> list[float]:
    def through(vectors: Sequence[Vector]) -> Vector:
        return averaged(vectors, [1.0] * len(vectors), run, compression=codec, read=_read)

    exact = averaged(sent, [1.0] * len(sent), run, compression=NoCompression())
    singles = [relative_error([_one_way(codec, tensor) for tensor in vector], vector) for vector in sent]
    return [statistics.mean(singles), relative_error(through(sent), exact)]


def _one_way(codec: CompressionBase, tensor: torch.Tensor) -> torch.Tensor:
    return codec.extract(codec.compress(tensor, CompressionInfo.from_tensor(tensor, key=0)))


def _read(
    message: runtime_pb2.Tensor, codec: CompressionBase, info: CompressionInfo, shape: torch.Size
) -> torch.Tensor:
    """Read a message of any codec; `read_part` takes only those that runs can choose."""
    return codec.extract(message)


def relative_error(found: Vector, exact: Vector) -> float:
    """Return the norm of all differences, relative to that of the exact values."""
    differences = [torch.linalg.vector_norm(a - b) for a, b in zip(found, exact, strict=True)]
    return float(torch.stack(differences).norm() / torch.stack([torch.linalg.vector_norm(b) for b in exact]).norm())


def rows_of(cells: Mapping[str, Any], seeds: Sequence[int]) -> list[Row]:
    """Return the figures: errors of the first seed, losses of all and their mean."""
    rows = []
    for moment, groups in cells[_cell("none", seeds[0])]["errors"].items():
        for group, errors in groups.items():
            for number, metric in enumerate(("relative error of a peer's gradient", "relative error of the average")):
                ours, peer, floor = (errors[name][number] for name in CODECS)
                rows.append(Row(case=f"{moment}: {group}", metric=metric, unit="1", ours=ours, peer=peer, floor=floor))
    pairs = [[cells[_cell(name, seed)]["loss"] for name in ("blockwise_8bit", "none")] for seed in seeds]
    means = [statistics.mean(column) for column in zip(*pairs, strict=True)]
    named = {**{f"seed {seed}": pair for seed, pair in zip(seeds, pairs, strict=True)}, "mean of the seeds": means}
    return rows + [
        Row(case=f"block-wise 8 bits beside float32: {name}", metric="held-out loss", unit="nat", ours=ours, peer=peer)
        for name, (ours, peer) in named.items()
    ]


def _cell(compression: str, seed: int) -> str:
    return f"{compression}, seed {seed}"


def main() -> None:
    """Train what has not been trained, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten epochs of one pair")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    seeds, num_epochs = (SEEDS[:1], 10) if quick else (SEEDS, NUM_EPOCHS)
    cells = Cells((RESULTS / "quick" if quick else RESULTS) / "averaging_codecs_cells.json")
    material = pictures()
    for seed in seeds:
        for compression in ("none", "blockwise_8bit"):
            cells.get(_cell(compression, seed), partial(trained, material, compression, seed, num_epochs))
    print(f"written to {write_results('averaging_codecs', rows_of(cells.values, seeds), is_quick=quick)}")


if __name__ == "__main__":
    main()
