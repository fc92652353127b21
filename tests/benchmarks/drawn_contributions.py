"""Sparse rounds in which few of all contributions count, drawn anew each round: the loss beside that of counting all.

    python tests/benchmarks/drawn_contributions.py [--quick] [--group 64|1000]

Each peer makes five local steps (Adam) of one sample, adds its progress to what it has not sent, and contributes 64 of
every 4,096 values; 60 rounds, error decay 0.95, outer rate 1. Selection, levels and norms are those of `SparseCodec`
and `mean`, for all peers at once. Samples are few and labels drawn, so more peers lose less.

Each arm's rate is tuned with one seed and measured with three others. Finished runs are kept in
`results/drawn_contributions_cells.json`; all of them take about 80 minutes of a core.
@@TABLE@@
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from local_steps import lowest
from many_sparse_peers import SHARES, Design, Problem, Swarm
from measurement import RESULTS, Row, write_results
from swarm_simulator import Cells

from pipelines.core.optimizers.schedule import linear_factor

ROUNDS, WARMUP_ROUNDS = 60, 3
FIRST_RATE = 0.06
"""Rates that are tried are this one times powers of two."""

TUNING_SEED, SEEDS = 0, (1, 2, 3)


def _arms(drawn: int, peers: int, *left_out: str) -> list[Design]:
    """Return counting all, and what becomes of those that are not drawn."""
    return [Design(peers=peers, drawn=count, left_out=own, rate=FIRST_RATE) for count, own in
            ((peers, "takes back"), *((drawn, own) for own in left_out))]  # fmt: skip


GROUPS: Mapping[str, Sequence[Design]] = {
    "64": (*_arms(32, 64, *SHARES), *_arms(16, 32, "takes back", "discards"), *_arms(8, 8)),
    "1000": (*_arms(32, 1000, "takes back", "discards", "less mean"), *_arms(32, 32)),
}
"""Arms by a name; the first one is what the others are compared with."""

QUICK = {"12": _arms(3, 12, "discards", "takes back")}


def trained(design: Design, seed: int, rounds: int) -> dict[str, float]:
    """Train; return the held-out loss and the least that it could be."""
    problem = Problem(seed)
    swarm = Swarm(problem, design)
    for number in range(rounds):
        swarm.round(linear_factor(number, num_warmup=min(WARMUP_ROUNDS, rounds), num_total=rounds))
    return dict(loss=problem.loss(swarm.shared), floor=problem.floor)


def figures(cells: Cells, arm: Design, seed: int, rounds: int) -> Mapping[str, float]:
    """Return the arm's loss and floor at its best rate with the seed of the tuning; a quick look tunes nothing."""

    def at(power: int, of_seed: int) -> Mapping[str, float]:
        design = replace(arm, rate=FIRST_RATE * 2.0**power)
        name = f"{design}, rate {design.rate:g}, {rounds} rounds, seed {of_seed}"
        return cells.get(name, partial(trained, design, of_seed, rounds))

    return at(lowest(lambda power: at(power, TUNING_SEED)["loss"], 0) if rounds == ROUNDS else 0, seed)


def rows_of(cells: Cells, arms: Sequence[Design], seeds: Sequence[int], rounds: int) -> list[Row]:
    """Return losses beside the first arm's, and ratios to it; the excess is what is above the floor."""
    rows = []
    for arm in arms:
        case, pairs = f"{arm}; beside {arms[0].peers}", []
        for seed in seeds:
            own, whole = figures(cells, arm, seed, rounds), figures(cells, arms[0], seed, rounds)
            pairs.append((own["loss"], whole["loss"], own["floor"]))
            values = dict(zip(("ours", "peer", "floor"), pairs[-1], strict=True))
            rows.append(Row(case=case, metric=f"held-out loss, seed {seed}", unit="nat", **values))
        for label, ratios in (
            ("loss", [own / whole for own, whole, _ in pairs]),
            ("excess", [(own - floor) / (whole - floor) for own, whole, floor in pairs]),
        ):
            for way in (statistics.median, min, max):
                rows.append(Row(case=case, metric=f"ratio of {label}, {way.__name__}", unit="1", ours=way(ratios)))
    return rows


def main() -> None:
    """Train what has not been trained, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few peers, few rounds")
    parser.add_argument("--group", choices=GROUPS, help="only the arms of so many peers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = RESULTS / "quick" if arguments.quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    groups, seeds, rounds = (QUICK, SEEDS[:1], 6) if arguments.quick else (GROUPS, SEEDS, ROUNDS)
    cells, is_whole, rows = Cells(folder / "drawn_contributions_cells.json"), arguments.group is None, []
    for name in groups if is_whole or arguments.quick else [arguments.group]:
        rows += rows_of(cells, groups[name], seeds, rounds)
    print(f"written to {write_results('drawn_contributions', rows, is_whole=is_whole, is_quick=arguments.quick)}")


if __name__ == "__main__":
    main()
