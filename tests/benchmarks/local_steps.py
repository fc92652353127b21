"""What local steps cost: the loss at equal samples for several `local_steps`, two models, simulated peers.

    python tests/benchmarks/local_steps.py [--quick] [--run pictures|language]

Four equal peers train for 3,000 optimizer steps' worth of samples, whatever `local_steps`: that makes 200 rounds of 15
local steps, and 60 of 50. With one seed, outer rate and momentum are tuned for each number of local steps; with three
others, paired by seed with a run that averages every gradient, the best ones are measured. All else is as in a run that
only changes `local_steps`: rate, schedule, codec, aggregation rule.

Each finished run is kept in `results/local_steps_RUN.json`: running it again continues, or only prints the table. To
measure anew, delete these files; all takes about three core-hours. Two processes may each measure one of the runs.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from measurement import RESULTS, Row, write_results
from simulated_runs import MATERIALS, Material
from swarm_simulator import Averaging, Cells, DivergedError, SimulatedSwarm

from pipelines.training.run.task import mean_loss

NUM_PEERS, BATCH_SIZE, NUM_STEPS = 4, 16, 3000
NUM_LOOKS = 5
"""Evaluations of a run, at equal distances; the last one is its loss."""

WARMUP_SHARE = 0.05
LOCAL_STEPS = (1, 5, 15, 30, 50)
TUNING_SEED, SEEDS = 0, (1, 2, 3)
DEFAULT = (1.0, 0.0)
GRID = (DEFAULT, (0.4, 0.9))
"""Outer rates and momenta; 1 without momentum is plain averaging of the parameters."""

DIVERGED = 1e3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured of each run."""

    num_steps: int = NUM_STEPS
    local_steps: Sequence[int] = LOCAL_STEPS
    grid: Sequence[tuple[float, float]] = GRID
    seeds: Sequence[int] = SEEDS

    @property
    def more_local_steps(self) -> Sequence[int]:
        """Those with outer steps."""
        return [number for number in self.local_steps if number > 1]


QUICK = Plan(num_steps=50, local_steps=(1, 5), grid=GRID[:2], seeds=SEEDS[:1])


def trained(
    material: Material,
    num_steps: int,
    local_steps: int,
    outer: tuple[float, float],
    seed: int,
    averaging: Averaging | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train; return the held-out losses on the way, and the seconds of CPU time.

    `averaging`: see `SimulatedSwarm`; `changes`: of the run's settings.
    """
    num_epochs, started = num_steps // local_steps, time.process_time()
    per_peer = BATCH_SIZE // NUM_PEERS
    task = material.task(
        batch_size=BATCH_SIZE, num_epochs=num_epochs, num_warmup_epochs=round(WARMUP_SHARE * num_epochs), seed=seed,
        local_steps=local_steps, inner_batch_size=per_peer * material.sample_weight,
        outer_learning_rate=outer[0], outer_momentum=outer[1], optimizer_bits=32, **changes,
    )  # fmt: skip
    batches, held_out, losses = material.batches(seed, per_peer), material.held_out_batches(), []
    with SimulatedSwarm(task, NUM_PEERS, averaging) as swarm:
        while swarm.num_epochs < num_epochs:
            steps = [[next(batches) for _ in range(NUM_PEERS)] for _ in range(local_steps)]
            try:
                swarm.epoch(list(zip(*steps, strict=True)))
            except DivergedError:
                losses.append(DIVERGED)
                break
            if swarm.num_epochs * NUM_LOOKS % num_epochs == 0:
                losses.append(min(DIVERGED, mean_loss(task, swarm.model, held_out)))
    return dict(losses=losses, seconds=round(time.process_time() - started))


class Measurement:
    """The cells of one run."""

    def __init__(self, name: str, plan: Plan, cells: Cells) -> None:
        self._name, self._plan, self._cells = name, plan, cells

    def measure(self) -> None:
        """Train what has not been trained, the most telling first."""
        self.loss(1, DEFAULT, TUNING_SEED)
        for outer, local_steps in itertools.product(self._plan.grid, self._plan.more_local_steps):
            self.loss(local_steps, outer, TUNING_SEED)
        for seed, local_steps in itertools.product(self._plan.seeds, self._plan.local_steps):
            self.loss(local_steps, self.best(local_steps), seed)

    def best(self, local_steps: int) -> tuple[float, float]:
        """Return the outer rate and momentum with the least loss with the seed of the tuning."""
        if local_steps == 1:
            return DEFAULT
        return min(self._plan.grid, key=lambda outer: self.loss(local_steps, outer, TUNING_SEED))

    def rows(self) -> list[Row]:
        """Return the figures, beside those of averaging every gradient with the same seeds."""
        rows, seeds = [], self._plan.seeds
        for local_steps, outer in itertools.product(self._plan.more_local_steps, self._plan.grid):
            case = f"{self._name}, local_steps {local_steps}"
            figures = dict(ours=self.loss(local_steps, outer, TUNING_SEED), peer=self.loss(1, DEFAULT, TUNING_SEED))
            rows.append(Row(case=case, metric=f"tuning: {_text(outer)}", unit="nat", **figures))
        for local_steps in self._plan.more_local_steps:
            case, outer = f"{self._name}, local_steps {local_steps}", self.best(local_steps)
            pairs = [(self.loss(local_steps, outer, seed), self.loss(1, DEFAULT, seed)) for seed in seeds]
            pairs.append(tuple(map(statistics.mean, zip(*pairs, strict=True))))
            rows += [
                Row(case=case, metric=f"{_text(outer)}, {label}", unit="nat", ours=ours, peer=peer)
                for label, (ours, peer) in zip([*(f"seed {seed}" for seed in seeds), "mean"], pairs, strict=True)
            ]
        return rows

    def loss(self, local_steps: int, outer: tuple[float, float], seed: int) -> float:
        """Return the loss at the end; train if that has not been done."""
        name = f"local_steps {local_steps}{'' if local_steps == 1 else ', ' + _text(outer)}, seed {seed}"
        measure = partial(self._trained, local_steps, outer, seed)
        return self._cells.get(name, measure)["losses"][-1]

    def _trained(self, local_steps: int, outer: tuple[float, float], seed: int) -> Mapping[str, Any]:
        found = trained(MATERIALS[self._name](), self._plan.num_steps, local_steps, outer, seed)
        print(self._name, local_steps, _text(outer), seed, found, flush=True)
        return found


def _text(outer: tuple[float, float]) -> str:
    return f"rate {outer[0]}, momentum {outer[1]}"


def main() -> None:
    """Train what has not been trained, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, few cells")
    parser.add_argument("--run", choices=MATERIALS, help="only one of the runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, plan = (RESULTS / "quick", QUICK) if arguments.quick else (RESULTS, Plan())
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in [arguments.run] if arguments.run else MATERIALS:
        measurement = Measurement(name, plan, Cells(folder / f"local_steps_{name}.json"))
        measurement.measure()
        rows += measurement.rows()
    is_whole = arguments.run is None
    print(f"written to {write_results('local_steps', rows, is_whole=is_whole, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
