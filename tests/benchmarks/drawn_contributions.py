"""Sparse rounds in which few of all contributions count, drawn anew each round: the loss beside that of counting all.

    python tests/benchmarks/drawn_contributions.py [--quick] [--group 64|1000]

Each peer makes five local steps (Adam) of one sample, adds its progress to what it has not sent, and contributes 64 of
every 4,096 values; 60 rounds, error decay 0.95, outer rate 1. Selection, levels and norms are those of `SparseCodec`
and `mean`, for all peers at once. Samples are few and labels drawn, so more peers lose less.

Each arm's rate is tuned with one seed and measured with three others. Finished runs are kept in
`results/drawn_contributions_cells.json`; all of them take about 40 minutes.

Ratios of the held-out loss to that of counting all; median, least and largest of three seeds. What is above the loss of
the network that draws the labels, 0.86 to 0.90 nat of 1.11 to 1.23, is the excess; the last column is its median ratio.

    arm                        beside  median  least   largest  excess
    32 of 64, takes back       64      1.000   0.999   1.003    1.002
    32 of 64, half             64      1.012   1.012   1.017    1.047
    32 of 64, discards         64      1.008   1.005   1.010    1.033
    32 of 64, less mean        64      1.004   1.001   1.008    1.015
    only 32 peers              64      1.047   1.047   1.055    1.187
    16 of 32, takes back       64      1.047   1.037   1.058    1.177
    16 of 32, discards         64      1.057   1.056   1.062    1.225
    only 8 peers               64      1.217   1.191   1.233    1.837
    32 of 1000, takes back     1000    1.082   1.072   1.141    1.351
    32 of 1000, discards       1000    1.016   1.012   1.021    1.070
    32 of 1000, less mean      1000    1.035   1.031   1.038    1.160
    only 32 peers              1000    1.093   1.093   1.097    1.423

What peers take back piles up: of 1,000 all keep much the same progress, which the drawn ones have long applied. Taking
back needs a lower rate, 0.03 with 32 of 64 and 0.015 with 32 of 1,000; all others of these swarms but `half` are best
at 0.06, as counting all is. With 32 of 64 at 0.06, taking back has 1.028 (1.025 to 1.037, by hand), discarding 1.008;
with 32 of 1,000 the loss is 2.71 nat beside 1.19 (seed of the tuning). Discarding, a peer goes on
as if it had been drawn. All peers have the same data, speed and number of samples here; other cases are not measured.
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
