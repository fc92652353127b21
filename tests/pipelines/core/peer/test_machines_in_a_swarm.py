"""Peers on unlike machines: several devices that are one peer, pauses, limits, short precision, delayed averaging."""

import contextlib
import signal

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
        peer = swarm.start("pair", micro_batch_size=7, seconds_per_batch=0.0, compute=options)
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
        peer = swarm.start("finder", micro_batch_size=None, seconds_per_batch=0.0, compute=dict(max_epochs=60))
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


@pytest.mark.long
def test_a_peer_that_rests_between_micro_batches_does_less_and_takes_part_in_the_rounds(tmp_path):
    run = tiny_run(num_epochs=6, target_batch_size=192)
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        peers = [
            swarm.start(name, seconds_per_batch=0.0, compute=dict(max_load=load))
            for name, load in (("tireless", 100), ("resting", 10))
        ]
        for peer in peers:
            peer.wait_for("finished")
    tireless, resting = ([step for step in peer.events("step") if step["was_used"]] for peer in peers)
    assert len(resting) < len(tireless) / 2
    assert sum(step["ended_epoch"] for step in resting) >= run.num_epochs / 2


def test_a_paused_peer_holds_nobody_up_and_catches_up_when_it_is_resumed(tmp_path):
    run = tiny_run(num_epochs=10_000, progress_expiration_seconds=20.0)
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        first = swarm.start("first", seconds_per_batch=0.2)
        second = swarm.start("second", compute=dict(precision="bf16"), bandwidth_limit_mbit=100)
        together = second.wait_for("step", has_averaged=True)
        second.process.send_signal(signal.SIGUSR1)
        alone = first.wait_for("step", num_peers=1, ended_epoch=True, after=together["time"])
        num_steps = len(second.events("step"))
        later = first.wait_for("step", epoch=alone["epoch"] + 4)
        assert len(second.events("step")) == num_steps
        second.process.send_signal(signal.SIGUSR2)
        back = second.wait_for("step", num_peers=2, was_used=True, ended_epoch=True, after=later["time"])
        first.wait_for("step", has_averaged=True, after=back["time"])
        for peer in (first, second):
            peer.terminate()
        finished = [peer.wait_for("finished") for peer in (first, second)]
    assert together["epoch"] <= alone["epoch"]
    # Four epochs alone, without a time-out (20 s) for the peer that rests.
    assert later["time"] - alone["time"] < 4 * 10
    assert back["epoch"] >= later["epoch"]
    start = first.events("evaluation")[0]["loss"]
    assert all(event["loss"] < start for event in finished)
    assert "Paused at epoch" in second.log() or finished[1]["epoch"] > alone["epoch"]


@pytest.mark.long
def test_averaging_behind_the_next_epochs_computation_converges_like_averaging_at_once(tmp_path):
    losses, swarms = {}, {}
    with contextlib.ExitStack() as stack:  # both swarms at the same time: they wait more than they compute
        for name, delay in (("at-once", False), ("behind", True)):
            (tmp_path / name).mkdir()
            run = tiny_run(
                num_epochs=14, averaging_compression="blockwise_8bit",
                delay_optimizer_step=delay, delay_gradient_averaging=delay,
            )  # fmt: skip
            swarms[name] = stack.enter_context(Swarm(tmp_path / name, run, num_peers=2))
            for peer in ("first", "second"):
                swarms[name].start(peer)
        for name, swarm in swarms.items():
            finished = [peer.wait_for("finished") for peer in swarm.peers]
            assert [event["epoch"] for event in finished] == [run.num_epochs] * 2
            losses[name] = max(event["loss"] for event in finished)
    start = swarms["behind"].peers[0].events("evaluation")[0]["loss"]
    assert losses["at-once"] < 0.85 * start
    assert losses["behind"] < 0.85 * start
    assert losses["behind"] < losses["at-once"] + 0.3 * (start - losses["at-once"])
