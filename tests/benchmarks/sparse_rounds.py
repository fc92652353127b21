"""What sparse rounds cost: the loss at equal samples, beside averaging every gradient and beside as few other rounds.

    python tests/benchmarks/sparse_rounds.py [--quick] [--tuning-only] [--run pictures|language]

Four equal peers, the models and data of `local_steps.py`; every gradient is averaged exactly. Each peer sends the `k`
largest of every 4,096 values of its progress and keeps the rest for later rounds.
Beside it, local steps that average all of their progress in three rounds: an all-reduce of four peers in 8 bits uploads
1.5 bytes a parameter and round, 4.5 in all, about as much as 200 sparse rounds. With one seed settings are tried; with
others, paired by seed, the best are measured.

Finished runs are kept in `results/sparse_rounds_RUN.json`; delete it to measure anew, which takes about two core-hours.
What a round sends in larger swarms is computed.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from local_steps import PLAIN, trained
from local_steps import QUICK as QUICK_LOCAL_STEPS
from measurement import RESULTS, Row, write_results
from simulated_runs import MATERIALS
from swarm_simulator import Cells, SparseRounds

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.sparse.codec import SparseCodec

TUNING_SEED, SEEDS = 0, (1, 2)
FEW_ROUNDS = 1000
"""Local steps of the runs without sparse rounds."""

NUM_PARAMETERS = 125_000_000
HIDDEN = 768
BLOCK = ((HIDDEN, 3 * HIDDEN), (3 * HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 4 * HIDDEN), (4 * HIDDEN,),
         (4 * HIDDEN, HIDDEN), *5 * ((HIDDEN,),))  # fmt: skip
"""Tensors of a layer of a model of this size, of which nearly all of it consists."""

SWARMS = (4, 16, 100)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run with sparse rounds."""

    local_steps: int
    k: int = 64
    decay: float = 0.95
    outer_rate: float = 1.0
    optimizer: str = "lamb"
    rate: float = 0.02

    def __str__(self) -> str:
        """Return the cell's name."""
        return (
            f"sparse, local_steps {self.local_steps}, k {self.k}, decay {self.decay}, outer rate {self.outer_rate}, "
            f"{self.optimizer} {self.rate}"
        )


GRID = (Setting(local_steps=15, decay=0.9, outer_rate=2.0), Setting(local_steps=15, rate=0.01))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured of each run."""

    num_steps: int = 3000
    few_rounds: int = FEW_ROUNDS
    grid: Sequence[Setting] = GRID
    seeds: Sequence[int] = SEEDS


QUICK = Plan(num_steps=QUICK_LOCAL_STEPS.num_steps, few_rounds=25, grid=(Setting(local_steps=5),), seeds=())


class SparseMeasurement:
    """The cells of one run."""

    def __init__(self, name: str, plan: Plan, cells: Cells) -> None:
        self._name, self._plan, self._cells = name, plan, cells

    def measure(self) -> None:
        """Train what has not been trained, the most telling first."""
        for setting in self._plan.grid:
            self._sparse(setting, TUNING_SEED)
        for seed in (TUNING_SEED, *self._plan.seeds):
            self._few_rounds(seed)
            self._sparse(self.best(), seed)
            self._synchronous(seed)

    def best(self) -> Setting:
        """Return the setting with the least loss with the seed of the tuning."""
        return min(self._plan.grid, key=lambda setting: self._sparse(setting, TUNING_SEED)["losses"][-1])

    def rows(self) -> list[Row]:
        """Return losses, beside those of averaging every gradient with the same seed, and bytes."""
        rows, few = [], f"{self._name}: local_steps {self._plan.few_rounds}, all values"
        for setting in self._plan.grid:
            found, case = self._sparse(setting, TUNING_SEED), f"{self._name}: {setting}"
            rows.append(self._loss_row(case, TUNING_SEED, found["losses"][-1]))
            metric = "bytes of a parameter and round"
            rows.append(Row(case=case, metric=metric, unit="B", ours=found["bytes_per_parameter"]))
        rows.append(self._loss_row(few, TUNING_SEED, self._few_rounds(TUNING_SEED)))
        best = f"{self._name}: {self.best()}"
        for seed in self._plan.seeds:
            rows.append(self._loss_row(best, seed, self._sparse(self.best(), seed)["losses"][-1]))
            rows.append(self._loss_row(few, seed, self._few_rounds(seed)))
        return rows

    def _loss_row(self, case: str, seed: int, loss: float) -> Row:
        return Row(case=case, metric=f"held-out loss, seed {seed}", unit="nat", ours=loss, peer=self._synchronous(seed))

    def _synchronous(self, seed: int) -> float:
        return self._of_all_values(f"local_steps 1, seed {seed}", 1, seed)

    def _few_rounds(self, seed: int) -> float:
        few = self._plan.few_rounds
        return self._of_all_values(f"local_steps {few}, all values, seed {seed}", few, seed)

    def _of_all_values(self, label: str, local_steps: int, seed: int) -> float:
        measure = partial(self._trained, label, local_steps, PLAIN, seed)
        return self._cells.get(label, measure)["losses"][-1]

    def _sparse(self, setting: Setting, seed: int) -> Mapping[str, Any]:
        def measure() -> Mapping[str, Any]:
            rounds = SparseRounds(setting.k, setting.decay)
            found = self._trained(
                f"{setting}, seed {seed}", setting.local_steps, (setting.outer_rate, 0.0), seed, averaging=rounds,
                inner_optimizer=setting.optimizer, peak_learning_rate=setting.rate,
            )  # fmt: skip
            return dict(found, bytes_per_parameter=statistics.mean(rounds.bytes_per_value))

        return self._cells.get(f"{setting}, seed {seed}", measure)

    def _trained(self, label: str, *arguments: Any, **changes: Any) -> Mapping[str, Any]:
        found = trained(MATERIALS[self._name](), self._plan.num_steps, *arguments, **changes)
        print(self._name, label, found, flush=True)
        return found


def traffic(num_peers: int, message_bytes: float) -> dict[str, float]:
    """Return the bytes of a round where each of so many trainers makes a message that all others take.

    With one fan-out node a trainer gives its message once; without, every trainer gives it to all others.
    """
    return {
        "download of a trainer": (num_peers - 1) * message_bytes,
        "upload of a trainer, with a fan-out node": message_bytes,
        "upload of a trainer, without": (num_peers - 1) * message_bytes,
        "upload of the fan-out node": num_peers * (num_peers - 1) * message_bytes,
        "download of the fan-out node": num_peers * message_bytes,
    }


def traffic_rows(setting: Setting) -> list[Row]:
    """Return what a round of a model with `NUM_PARAMETERS` sends; the peer is an all-reduce in 8 bits."""
    codec, generator = SparseCodec(BLOCK, k=setting.k), torch.Generator().manual_seed(0)
    payload = codec.encode([torch.randn(shape, generator=generator) for shape in BLOCK], 1)
    message, rows = len(payload) / codec.layout.num_values * NUM_PARAMETERS, []
    for num_peers in SWARMS:
        all_reduce = 2 * (num_peers - 1) / num_peers * NUM_PARAMETERS / 1e6
        rows += [
            Row(case=f"{num_peers} peers, k {setting.k}", metric=name, unit="MB", ours=number / 1e6, peer=all_reduce)
            for name, number in traffic(num_peers, message).items()
        ]
    num_samples = TrainingRun.target_batch_size * setting.local_steps
    metric = "upload of a trainer for each sample of the swarm, with a fan-out node"
    case = f"local_steps {setting.local_steps}, k {setting.k}"
    return [*rows, Row(case=case, metric=metric, unit="B", ours=message / num_samples)]


def main() -> None:
    """Train what has not been trained, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, few cells")
    parser.add_argument("--run", choices=MATERIALS, help="only one of the runs")
    parser.add_argument("--tuning-only", action="store_true", help="only the seed with which settings are tried")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, plan = (RESULTS / "quick", QUICK) if arguments.quick else (RESULTS, Plan())
    if arguments.tuning_only:
        plan = replace(plan, seeds=())
    folder.mkdir(parents=True, exist_ok=True)
    rows = traffic_rows(Setting(local_steps=30))
    for name in [arguments.run] if arguments.run else MATERIALS:
        measurement = SparseMeasurement(name, plan, Cells(folder / f"sparse_rounds_{name}.json"))
        measurement.measure()
        rows += measurement.rows()
    is_whole = arguments.run is None
    print(f"written to {write_results('sparse_rounds', rows, is_whole=is_whole, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
