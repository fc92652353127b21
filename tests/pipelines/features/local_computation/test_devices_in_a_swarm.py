"""Peers that suit their machine: several devices that are one peer, and micro-batches of a size that is measured."""

import pytest
from made_up_tasks import made_up_batch
from plain_training import largest_difference, train_alone
from safetensors.torch import load_file
from swarm_of_processes import Swarm, tiny_run

from pipelines.tasks.text_to_image.model import initial_model

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


def test_two_processes_act_as_one_peer_with_the_joined_batch_until_its_hours_are_over(tmp_path):
    run = tiny_run(num_epochs=10_000, target_batch_size=16)
    options = dict(num_devices=2, max_hours=5 / 3600)
    with Swarm(tmp_path, run, num_peers=1) as swarm:
        # 7 samples: the two shares differ.
        peer = swarm.start("pair", micro_batch_size=7, seconds_per_batch=0.0, suits_its_machine=True, compute=options)
        finished = peer.wait_for("finished")
        assert peer.process.wait(30) == 0
    steps = peer.events("step")
    duration = steps[-1]["time"] - steps[0]["time"]
    assert 1 <= finished["epoch"] < run.num_epochs
    assert duration < 30
    epochs = [
        [made_up_batch(run, step["seed"], 7) for step in steps if step["epoch"] == epoch]
        for epoch in range(finished["epoch"])
    ]
    expected = {name: value.detach() for name, value in train_alone(run, epochs).items()}
    pair = load_file(tmp_path / "pair.safetensors")
    assert largest_difference(pair, expected) < 1e-5
    assert largest_difference(pair, {n: p.detach() for n, p in initial_model(run).named_parameters()}) > 1e-2


@pytest.mark.long
def test_a_peer_that_measures_micro_batches_while_it_trains_computes_what_it_would_without(tmp_path):
    run = tiny_run(num_epochs=10_000, target_batch_size=64)
    with Swarm(tmp_path, run, num_peers=1) as swarm:
        peer = swarm.start(
            "finder", micro_batch_size=None, seconds_per_batch=0.0, suits_its_machine=True, compute=dict(max_epochs=60)
        )
        finished = peer.wait_for("finished")
    steps = peer.events("step")
    assert 0 < steps[0]["num_measured"] < steps[-1]["num_measured"], "at the start, and again"
    assert max(step["num_samples"] for step in steps) <= 8, "small beside the batch of the swarm"
    epochs = [
        [made_up_batch(run, step["seed"], step["num_samples"]) for step in steps if step["epoch"] == epoch]
        for epoch in range(finished["epoch"])
    ]
    expected = {name: value.detach() for name, value in train_alone(run, epochs).items()}
    assert largest_difference(load_file(tmp_path / "finder.safetensors"), expected) < 1e-4
