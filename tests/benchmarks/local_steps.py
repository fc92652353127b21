"""What optimizers and local steps cost: the loss at equal samples, each at its best rate; two models, simulated peers.

    python tests/benchmarks/local_steps.py [--quick] [--so-far] [--hours] [--run pictures|language]

Four equal peers train on as many samples whatever the optimizer and `local_steps`. With one seed the rate of every cell
is tuned in short runs, that of averaging every gradient too. The best cell of each optimizer and number of local steps
then trains for longer with three other seeds, and the best two for long with one. Equal seeds are equal samples and
initial parameters; what was tuned on one half of the held-out records is reported on the other.

Codec, aggregation rule, schedule and clipping are a run's own. Where every gradient is averaged the mean is exact
instead, and four peers are one that computes all records: the same to float error.

Each finished run is kept in `results/local_steps_RUN.json`, whatever ends this program: started again, it continues.
`--so-far` trains nothing and writes the figures that there are; `--hours` says how long everything would take. Two
processes may each measure one of the runs. To measure anew, delete these files.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any

import torch
from measurement import RESULTS, Row, write_results
from simulated_runs import MATERIALS, Material
from swarm_simulator import Averaging, Cells, DivergedError, SimulatedSwarm

from pipelines.core.run.task import mean_loss

NUM_PEERS, BATCH_SIZE = 4, 16
NUM_LOOKS = 5
"""Evaluations of a run, at about equal distances; the last one is its loss."""

WARMUP_SHARE = 0.05
TUNING_SEED, SEEDS = 0, (1, 2, 3)
T_QUANTILE = 4.303
"""Of the t distribution with two degrees of freedom, for 95 %: for the mean of three seeds."""

TUNED_ON, REPORTED_ON = slice(0, 4), slice(4, 8)
"""Batches of the held-out records."""

PLAIN = (1.0, 0.0)
"""Outer rate and momentum of plain averaging of the parameters."""

FORMER_RATE, RATE_FACTOR = 0.02, 1.6
"""The rates that are tried are this one times powers of the factor."""

NUM_RATES = 4
"""How many rates a cell needs, about."""

FIRST_POWER = {"lamb": 0, "muon": -1, "adamw": -3}
DIVERGED = 1e3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is compared: an optimizer, with local steps the inner one, and how progress is averaged."""

    optimizer: str
    local_steps: int = 1
    outer: tuple[float, float] = PLAIN

    def __str__(self) -> str:
        """Return the cell's name."""
        if self.local_steps == 1:
            return f"{self.optimizer}, every gradient"
        how = "plain averages" if self.outer == PLAIN else "outer {} and {}".format(*self.outer)
        return f"{self.optimizer}, {self.local_steps} local steps, {how}"


def _cells(optimizer: str, local_steps: int, *outer: tuple[float, float]) -> tuple[Cell, ...]:
    return tuple(Cell(optimizer=optimizer, local_steps=local_steps, outer=own) for own in (*outer, PLAIN))


FORMER = Cell(optimizer="lamb")
"""At `FORMER_RATE` the project's default before local steps and `muon` were measured."""

LAMB, MUON, ADAMW = (FORMER,), (Cell(optimizer="muon"),), (Cell(optimizer="adamw"),)
GROUPS = (
    LAMB, MUON, _cells("muon", 15, (0.7, 0.8)), _cells("muon", 50, (0.7, 0.6), (0.7, 0.8)),
    _cells("lamb", 15, (0.7, 0.8)), ADAMW, _cells("lamb", 50, (0.7, 0.6), (0.7, 0.8)),
)  # fmt: skip
"""Cells of which the best is trained for longer; the most telling first."""

NUM_TELLING = 3
"""Groups that are measured with all seeds before the others are tuned."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured of each run."""

    groups: Sequence[Sequence[Cell]] = GROUPS
    tuning_steps: int = 1500
    num_steps: int = 3000
    many_steps: int = 10_000
    seeds: Sequence[int] = SEEDS

    @property
    def cells(self) -> Sequence[Cell]:
        """All of them, in the order in which they are tuned."""
        return tuple(chain(*self.groups))


QUICK = Plan(
    groups=(LAMB, MUON, _cells("muon", 15, (0.7, 0.8))), tuning_steps=30, num_steps=30, many_steps=60, seeds=SEEDS[:1]
)


def trained(
    material: Material,
    num_steps: int,
    local_steps: int,
    outer: tuple[float, float],
    seed: int,
    averaging: Averaging | None = None,
    part: slice = slice(None),
    **changes: Any,
) -> dict[str, Any]:
    """Train; return the held-out losses on the way, and the seconds of CPU time.

    `averaging`: see `SimulatedSwarm`; `part`: of the held-out batches; `changes`: of the run's settings.
    """
    num_epochs, started = num_steps // local_steps, time.process_time()
    num_peers = 1 if local_steps == 1 else NUM_PEERS
    task = material.task(
        batch_size=BATCH_SIZE, num_epochs=num_epochs, num_warmup_epochs=round(WARMUP_SHARE * num_epochs), seed=seed,
        local_steps=local_steps, inner_batch_size=BATCH_SIZE // NUM_PEERS * material.sample_weight,
        outer_learning_rate=outer[0], outer_momentum=outer[1], optimizer_bits=32, **changes,
    )  # fmt: skip
    batches, held_out = material.batches(seed, BATCH_SIZE // num_peers), material.held_out_batches()[part]
    losses: list[float] = []
    # The text-to-image model, compiled layer by layer, was not faster.
    compiled, averaging = material.name == "language", alone if num_peers == 1 else averaging
    with SimulatedSwarm(task, num_peers, averaging, compiled=compiled) as swarm:
        while swarm.num_epochs < num_epochs:
            steps = [[next(batches) for _ in range(num_peers)] for _ in range(local_steps)]
            try:
                swarm.epoch(list(zip(*steps, strict=True)))
            except DivergedError:
                losses.append(DIVERGED)
                break
            if swarm.num_epochs * NUM_LOOKS // num_epochs > len(losses):
                losses.append(min(DIVERGED, mean_loss(task, swarm.model, held_out)))
    return dict(losses=losses, seconds=round(time.process_time() - started))


def alone(vectors: Sequence[Sequence[torch.Tensor]], weights: Sequence[float]) -> Sequence[torch.Tensor]:
    """Return what a single peer takes from a round: see `Averaging`."""
    return vectors[0]


def _rate(power: int) -> float:
    return float(f"{FORMER_RATE * RATE_FACTOR**power:.2g}")


def lowest(height: Callable[[int], float], place: int) -> int:
    """Return a place that is not higher than its two neighbours, downhill from this one."""
    for beside in (place - 1, place + 1):
        if height(beside) < height(place):
            return lowest(height, beside)
    return place


class NotMeasuredError(LookupError):
    """A run has not been trained yet, and is not to be trained now."""


class Measurement:
    """The cells of one run; with `may_train` whatever is asked for is trained."""

    def __init__(self, name: str, plan: Plan, cells: Cells, *, may_train: bool) -> None:
        self._name, self._plan, self._cells, self._may_train = name, plan, cells, may_train

    def measure(self) -> None:
        """Train what has not been trained, the most telling first."""
        plan = self._plan
        for groups in (plan.groups[:NUM_TELLING], plan.groups):
            winners = [self.winner(group) for group in groups]
            for seed in plan.seeds:
                self.loss(FORMER, FORMER_RATE, plan.num_steps, seed)
                for cell in winners:
                    self.reported(cell, seed)
        self.measure_long()

    def measure_long(self) -> None:
        """Train the best two cells, and what they are compared with, for many steps."""
        first, steps = self._plan.seeds[0], self._plan.many_steps
        winners = [self.winner(group) for group in self._plan.groups]
        for is_local in (False, True):
            best = min(
                (cell for cell in winners if (cell.local_steps > 1) == is_local),
                key=lambda cell: self.reported(cell, first),
            )
            for cell in (best, self.synchronous(best)):
                self.loss(cell, self.rate(cell), steps, first)
        self.loss(FORMER, FORMER_RATE, steps, first)

    def winner(self, group: Sequence[Cell]) -> Cell:
        """Return the cell with the least loss at its own best rate, with the seed of the tuning."""
        return min(group, key=lambda cell: self.tuning(cell, self.rate(cell)))

    def rate(self, cell: Cell) -> float:
        """Return the cell's best rate: better than the next smaller and the next larger one."""
        return _rate(self._power(cell))

    def _power(self, cell: Cell) -> int:
        """Climb from where the optimizer was best in the cell before this one."""
        cells = self._plan.cells
        before = [other for other in cells[: cells.index(cell)] if other.optimizer == cell.optimizer]
        start = self._power(before[-1]) if before else FIRST_POWER[cell.optimizer]
        return lowest(lambda power: self.tuning(cell, _rate(power)), start)

    def tuning(self, cell: Cell, rate: float) -> float:
        """Return the loss of a short run."""
        return self.loss(cell, rate, self._plan.tuning_steps, TUNING_SEED, TUNED_ON)

    def reported(self, cell: Cell, seed: int) -> float:
        """Return the loss of a longer run at the cell's best rate."""
        return self.loss(cell, self.rate(cell), self._plan.num_steps, seed)

    @staticmethod
    def synchronous(cell: Cell) -> Cell:
        """Return the cell with the same optimizer that averages every gradient."""
        return Cell(optimizer=cell.optimizer)

    def loss(self, cell: Cell, rate: float, num_steps: int, seed: int, part: slice = REPORTED_ON) -> float:
        """Return the loss at the end; train if that has not been done."""
        name = f"{cell}, rate {rate}, {num_steps} steps, seed {seed}"
        measure = partial(self._trained, name, cell, rate, num_steps, seed, part)
        return self._cells.get(name, measure)["losses"][-1]

    def _trained(self, name: str, cell: Cell, rate: float, num_steps: int, seed: int, part: slice) -> Mapping[str, Any]:
        if not self._may_train:
            raise NotMeasuredError(name)
        settings = dict(optimizer=cell.optimizer, inner_optimizer=cell.optimizer, peak_learning_rate=rate)
        material = MATERIALS[self._name]()
        found = trained(material, num_steps, cell.local_steps, cell.outer, seed, part=part, **settings)
        print(f"{self._name}: {name}", found, flush=True)
        return found

    def rows(self) -> Iterator[Row]:
        """Yield what has been measured; the peer is the former default, the floor the same optimizer, synchronous."""
        plan = self._plan
        for cell in plan.cells:
            with suppress(NotMeasuredError):
                figures = dict(
                    ours=self.tuning(cell, self.rate(cell)), peer=self.tuning(FORMER, FORMER_RATE),
                    floor=self.tuning(self.synchronous(cell), self.rate(self.synchronous(cell))),
                )  # fmt: skip
                yield Row(case=self._case(cell), metric=f"tuning, {plan.tuning_steps} steps", unit="nat", **figures)
        for num_steps, group in product((plan.num_steps, plan.many_steps), plan.groups):
            rows: list[Row] = []
            for seed in plan.seeds:
                with suppress(NotMeasuredError):
                    rows.append(self._reported_row(self.winner(group), num_steps, seed))
            yield from rows
            if len(rows) == len(SEEDS):
                yield from _summary(rows, f"{num_steps} steps")

    def _reported_row(self, cell: Cell, num_steps: int, seed: int) -> Row:
        own = self.synchronous(cell)
        ours, floor = (self.loss(other, self.rate(other), num_steps, seed) for other in (cell, own))
        peer = self.loss(FORMER, FORMER_RATE, num_steps, seed)
        metric = f"{num_steps} steps, seed {seed}"
        return Row(case=self._case(cell), metric=metric, unit="nat", ours=ours, peer=peer, floor=floor)

    def _case(self, cell: Cell) -> str:
        return f"{self._name}: {cell}, rate {self.rate(cell)}"

    def core_hours(self) -> float:
        """Print the seconds of a step in each group; return the hours of a core that all runs take."""
        plan, hours = self._plan, 0.0
        for number, group in enumerate(plan.groups):
            settings = dict(optimizer=group[0].optimizer, inner_optimizer=group[0].optimizer)
            base, spent = 2 * max(group[0].local_steps, 15), []
            for num_steps in (base, base, 2 * base):  # the first one also compiles
                started = time.process_time()
                trained(MATERIALS[self._name](), num_steps, group[0].local_steps, PLAIN, 0, **settings)
                spent.append(time.process_time() - started)
            seconds = (spent[-1] - spent[-2]) / base
            total = len(group) * NUM_RATES * plan.tuning_steps + len(plan.seeds) * plan.num_steps
            total += plan.many_steps * (number < NUM_TELLING)
            hours += seconds * total / 3600
            print(f"{self._name}: {group[0]}: {seconds:.3f} s a step, about {total:,} steps", flush=True)
        return hours


def _summary(rows: Sequence[Row], label: str) -> Iterator[Row]:
    """Yield the means over seeds, and both ratios with what holds 95 % of them if their logarithms are normal."""
    case, columns = rows[0].case, [[getattr(row, name) for row in rows] for name in ("ours", "peer", "floor")]
    ours, former, own = columns
    means = dict(zip(("ours", "peer", "floor"), map(statistics.mean, columns), strict=True))
    yield Row(case=case, metric=f"{label}, mean of the seeds", unit="nat", **means)
    for name, others in (("the former default", former), ("the same optimizer, synchronous", own)):
        logarithms = [math.log(one / other) for one, other in zip(ours, others, strict=True)]
        half = T_QUANTILE * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
        for end, shift in (("", 0.0), (", low end", -half), (", high end", half)):
            ratio = math.exp(statistics.mean(logarithms) + shift)
            yield Row(case=case, metric=f"{label}, ratio to {name}{end}", unit="1", ours=ratio)


def main() -> None:
    """Train what has not been trained, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, few cells")
    parser.add_argument("--so-far", action="store_true", help="train nothing, write the figures of finished runs")
    parser.add_argument("--hours", action="store_true", help="only say how long all runs would take")
    parser.add_argument("--run", choices=MATERIALS, help="only one of the runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, plan = (RESULTS / "quick", QUICK) if arguments.quick else (RESULTS, Plan())
    folder.mkdir(parents=True, exist_ok=True)
    rows, hours = [], 0.0
    # Text first: it is the quicker one.
    for name in [arguments.run] if arguments.run else sorted(MATERIALS):
        cells = Cells(folder / f"local_steps_{name}.json")
        measurement = Measurement(name, plan, cells, may_train=not arguments.so_far)
        if arguments.hours:
            hours += measurement.core_hours()
        elif not arguments.so_far:
            measurement.measure()
        rows += measurement.rows()
    if arguments.hours:
        print(f"{hours:.1f} hours of a core")
        return
    is_whole = arguments.run is None
    print(f"written to {write_results('local_steps', rows, is_whole=is_whole, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
