"""How the benchmark of local steps tunes, and what it makes of runs that have finished; one peer stands for four."""

import json
import math
import statistics

import pytest
import torch
from local_steps import FORMER, LAMB, MUON, Cell, Measurement, NotMeasuredError, Plan, alone, lowest
from made_up_tasks import made_up_batch, made_up_task
from swarm_of_processes import tiny_run
from swarm_simulator import Cells, SimulatedSwarm

PLAN = Plan(groups=(LAMB, MUON), tuning_steps=1, num_steps=2, many_steps=4)
TUNED = {"lamb": (0.02, 0.013, 0.032), "muon": (0.013, 0.0078, 0.02)}
"""The best rate, which is tried first, and those beside it."""


@pytest.mark.parametrize("start", [-5, 0, 3, 9])
def test_tuning_climbs_to_the_rate_that_is_better_than_its_neighbours(start):
    tried = []
    assert lowest(lambda place: tried.append(place) or (place - 3) ** 2, start) == 3
    assert {2, 4} <= set(tried) <= {*range(min(start, 3) - 1, max(start, 3) + 2)}


def measurement(tmp_path, losses):
    """The measurement that finds these losses of finished runs, and trains nothing."""
    path = tmp_path / "cells.json"
    path.write_text(json.dumps({name: dict(losses=[9.0, loss], seconds=1) for name, loss in losses.items()}))
    return Measurement("language", PLAN, Cells(path), may_train=False)


def tuning_losses():
    return {
        f"{optimizer}, every gradient, rate {rate}, 1 steps, seed 0": 3.0 + (number > 0)
        for optimizer, rates in TUNED.items()
        for number, rate in enumerate(rates)
    }


def test_what_has_finished_is_reported_and_what_has_not_is_left_out(tmp_path):
    losses = tuning_losses() | {
        "lamb, every gradient, rate 0.02, 2 steps, seed 1": 4.0,
        "muon, every gradient, rate 0.013, 2 steps, seed 1": 3.0,
        "muon, every gradient, rate 0.013, 2 steps, seed 2": 3.0,
    }
    found = measurement(tmp_path, losses)
    rows = {(row.case.partition(": ")[2], row.metric): row for row in found.rows()}
    assert set(rows) == {
        ("lamb, every gradient, rate 0.02", "tuning, 1 steps"),
        ("muon, every gradient, rate 0.013", "tuning, 1 steps"),
        ("lamb, every gradient, rate 0.02", "2 steps, seed 1"),
        ("muon, every gradient, rate 0.013", "2 steps, seed 1"),
    }
    row = rows["muon, every gradient, rate 0.013", "2 steps, seed 1"]
    assert (row.ours, row.peer, row.floor) == (3.0, 4.0, 3.0)
    with pytest.raises(NotMeasuredError, match="muon, 5 local steps"):
        found.tuning(Cell(optimizer="muon", local_steps=5), 0.02)


def test_three_seeds_give_a_mean_ratio_and_its_interval(tmp_path):
    ours, former = (2.7, 3.0, 3.3), (3.0, 3.1, 3.2)
    losses = tuning_losses()
    for seed in (1, 2, 3):
        losses[f"lamb, every gradient, rate 0.02, 2 steps, seed {seed}"] = former[seed - 1]
        losses[f"muon, every gradient, rate 0.013, 2 steps, seed {seed}"] = ours[seed - 1]
    found = measurement(tmp_path, losses)
    assert found.winner(LAMB) == FORMER
    figures = {row.metric: row.ours for row in found.rows() if "muon" in row.case}
    logarithms = [math.log(one / other) for one, other in zip(ours, former, strict=True)]
    low, ratio, high = (
        figures[f"2 steps, ratio to the former default{end}"] for end in (", low end", "", ", high end")
    )
    assert ratio == pytest.approx(math.exp(statistics.mean(logarithms)))
    standard_error = statistics.stdev(logarithms) / math.sqrt(3)
    assert (math.log(high / ratio), math.log(ratio / low)) == pytest.approx([4.3027 * standard_error] * 2, rel=1e-4)
    assert figures["2 steps, ratio to the same optimizer, synchronous, low end"] == 1.0


def test_one_peer_with_all_records_steps_as_four_peers_whose_gradients_are_averaged_exactly():
    run = tiny_run(target_batch_size=16, num_epochs=3)
    together = [made_up_batch(run, seed, 16) for seed in range(run.num_epochs)]
    outcomes = []
    for num_peers, averaging in (
        (1, alone),
        (4, lambda vectors, weights: [torch.stack(v).mean(0) for v in zip(*vectors, strict=True)]),
    ):
        with SimulatedSwarm(made_up_task(run), num_peers, averaging) as swarm:
            for batch in together:
                parts = [{name: tensor.chunk(num_peers)[number] for name, tensor in batch.items()}
                         for number in range(num_peers)]  # fmt: skip
                swarm.epoch([[part] for part in parts])
            outcomes.append([parameter.detach().clone() for parameter in swarm.model.parameters()])
    for first, second in zip(*outcomes, strict=True):
        torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-3)
