"""Real peers as OS processes on this machine: what they average, and what happens when some of them die."""

import signal
import time

import pytest
from plain_training import largest_difference
from safetensors.torch import load_file
from swarm_of_processes import PATIENT, Swarm, tiny_run

from pipelines.tasks.text_to_image.model import initial_model

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


def run_two_peers(folder, run, **settings_of_second):
    """Run two peers to the end and return them."""
    with Swarm(folder, run, num_peers=2) as swarm:
        peers = [swarm.start("first"), swarm.start("second", **settings_of_second)]
        for peer in peers:
            peer.wait_for("finished")
    return peers


def test_eight_bit_averaging_sends_one_byte_per_parameter_and_leaves_peers_with_the_same_bits(tmp_path):
    # Large tensors, as in a real model: each part carries 1 kB of bucket means.
    model = dict(tiny_run().model_config, hidden_size=256, num_attention_heads=4, head_dim=64)
    run = tiny_run(
        model_config=model,
        averaging_compression="blockwise_8bit",
        min_8bit_elements=2**16,
        num_epochs=6,
        optimizer_bits=8,
        delay_optimizer_step=True,
        delay_gradient_averaging=True,
        **PATIENT,
    )
    peers = run_two_peers(tmp_path, run)
    finished = [peer.events("finished")[0] for peer in peers]
    num_parameters = initial_model(run).num_parameters()
    for event in finished:
        assert event["share_averaged"] == 1.0
        assert not event["was_declared_twice"]  # hivemind does that for every tensor of a round, all at once
        expected = num_parameters * 2 * (2 - 1) / 2
        assert event["bytes_sent"] / event["num_rounds"] == pytest.approx(expected, rel=0.05)
    parameters = [load_file(tmp_path / f"{name}.safetensors") for name in ("first", "second")]
    assert largest_difference(*parameters) == 0.0
    named = [{event["epoch"]: event["digest"] for event in peer.events("state")} for peer in peers]
    for peer in peers:  # a round behind the next epoch's computation is of its own epoch, whenever it ends
        assert [event["epoch"] for event in peer.events("averaged")] == list(range(1, run.num_epochs + 1))
    epochs = set(named[0]) & set(named[1])
    assert len(epochs) >= 3, "epoch by epoch peers name the digest of their whole state, also while a step is delayed"
    assert {epoch: named[0][epoch] for epoch in epochs} == {epoch: named[1][epoch] for epoch in epochs}


@pytest.mark.parametrize(
    ("task", "number"),
    [
        ("text-to-image", signal.SIGKILL),
        pytest.param("text-to-image", signal.SIGSTOP, marks=pytest.mark.long),
        pytest.param("fill-mask", signal.SIGKILL, marks=pytest.mark.long),
    ],
    ids=["killed", "frozen", "killed in a language run"],
)
def test_two_of_three_average_again_when_the_third_vanishes_in_the_middle_of_a_round(tmp_path, task, number):
    run = tiny_run(task, num_epochs=6, target_batch_size=48, averaging_timeout_seconds=20.0)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        first, second = swarm.start("first"), swarm.start("second")
        victim = swarm.start("victim", struck_in_round_of_epoch=3, signal=number)
        finished = [peer.wait_for("finished", seconds=150) for peer in (first, second)]
    assert max(step["epoch"] for step in victim.events("step")) <= 3
    assert [event["epoch"] for event in finished] == [run.num_epochs] * 2
    for peer in (first, second):
        ends = {step["epoch"]: step for step in peer.events("step") if step["ended_epoch"]}
        # A second all-reduce for the same gradients, unless the victim was struck before this peer had met it. On a
        # busy machine the first epoch may have ended before this peer was there.
        assert ends[2]["num_rounds"] >= 1 and ends[3]["num_rounds"] - ends[2]["num_rounds"] in (1, 2)
        assert ends[3]["share_averaged"] == 1.0
    start = first.events("evaluation")[0]["loss"]
    assert all(event["loss"] < start for event in finished)
    parameters = [load_file(tmp_path / f"{name}.safetensors") for name in ("first", "second")]
    assert largest_difference(*parameters) == 0.0
    named = [{event["epoch"]: event["digest"] for event in peer.events("state")} for peer in (first, second)]
    epochs = set(named[0]) & set(named[1])
    assert {epoch: named[0][epoch] for epoch in epochs} == {epoch: named[1][epoch] for epoch in epochs}


@pytest.mark.long
def test_three_of_four_meet_again_without_the_one_whose_parts_come_too_late(tmp_path):
    run = tiny_run(num_epochs=6, target_batch_size=64)
    with Swarm(tmp_path, run, num_peers=4) as swarm:
        punctual = [swarm.start(name, save_epochs=True) for name in ("first", "second", "third")]
        swarm.start("dawdler", dawdles_in_round_of_epoch=3)
        for peer in punctual:
            peer.wait_for("step", epoch=4, seconds=200)
    for peer in punctual:
        ends = {step["epoch"]: step for step in peer.events("step") if step["ended_epoch"]}
        assert ends[3]["num_rounds"] - ends[2]["num_rounds"] == 2, "a second all-reduce for the same gradients"
        assert ends[3]["share_averaged"] == 1.0, "nobody is left out of it"
    parameters = [load_file(tmp_path / f"{peer.name}-4.safetensors") for peer in punctual]
    assert largest_difference(*parameters[:2]) == largest_difference(*parameters[1:]) == 0.0


@pytest.mark.long
def test_a_gradient_that_misses_its_round_counts_in_the_next(tmp_path):
    run = tiny_run(num_epochs=10_000, target_batch_size=600)
    pace = dict(seconds_per_batch=0.2)  # ten seconds an epoch for three, on any machine: enough to come back within one
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        others = [swarm.start("first", **pace), swarm.start("second", **pace)]
        late = swarm.start("late", **pace)
        late.wait_for("step", epoch=1)
        late.freeze()
        num_gathered = late.events("step")[-1]["num_gathered"]
        for other in others:
            other.wait_for("step", epoch=1, ended_epoch=True)
        late.thaw()
        late.wait_for("step", epoch=2, was_used=True)
        late.wait_for("step", epoch=2, ended_epoch=True)
    steps = [step for step in late.events("step") if step["epoch"] == 2 and step["was_used"]]
    assert steps[0]["num_gathered"] > num_gathered > 0
    assert steps[-1]["share_averaged"] == 1.0
    for other in others:
        assert [step["share_averaged"] for step in other.events("step") if step["epoch"] == 2][-1] == 1.0


@pytest.mark.long
def test_a_peer_that_misses_a_round_behind_the_next_epoch_does_not_take_the_swarm_apart(tmp_path):
    run = tiny_run(num_epochs=10_000, target_batch_size=400, delay_optimizer_step=True, delay_gradient_averaging=True)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        others = [swarm.start("first"), swarm.start("second")]
        late = swarm.start("late")
        late.wait_for("step", epoch=2)
        late.freeze()
        for other in others:
            other.wait_for("step", epoch=3)
        late.thaw()
        epoch = wait_for_equal_states([*others, late], after_epoch=4)
        for peer in (*others, late):
            peer.wait_for("step", epoch=epoch, ended_epoch=True, share_averaged=1.0)


def wait_for_equal_states(peers, after_epoch, seconds=120.0):
    """Return a later epoch whose state all peers name by the same digest, and which all have had a whole round in."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        named = [{event["epoch"]: event["digest"] for event in peer.events("state")} for peer in peers]
        whole = [
            {step["epoch"] for step in peer.events("step") if step["ended_epoch"] and step["share_averaged"] == 1.0}
            for peer in peers
        ]
        for epoch in set.intersection(*map(set, named), *whole):
            if epoch > after_epoch and len({states[epoch] for states in named}) == 1:
                return epoch
        time.sleep(0.2)
    raise AssertionError(f"no epoch after {after_epoch} in which all agree within {seconds} s")


@pytest.mark.long
@pytest.mark.parametrize("task", ["text-to-image", "text-generation"])
def test_a_newcomer_takes_over_the_swarms_state_and_contributes(tmp_path, task):
    run = tiny_run(task, num_epochs=10_000)
    with Swarm(tmp_path, run, num_peers=1) as swarm:
        first = swarm.start("first", seconds_per_batch=0.25)
        first.wait_for("step", epoch=2)
        newcomer = swarm.start("newcomer")
        ready = newcomer.wait_for("ready")
        for peer in (first, newcomer):
            peer.wait_for("step", has_averaged=True, was_used=True)
        for peer in (first, newcomer):
            peer.terminate()
        finished = [peer.wait_for("finished") for peer in (first, newcomer)]
    assert ready["source"] == "peers"
    assert ready["epoch"] >= 2
    assert all(event["num_rounds"] >= 1 for event in finished)


def test_a_peer_behind_a_firewall_trains_with_others_that_average_for_it(tmp_path):
    run = tiny_run(num_epochs=4, **PATIENT)
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        reachable = swarm.start("reachable")
        client = swarm.start("client", client_mode=True)
        finished = [peer.wait_for("finished") for peer in (reachable, client)]
        used = [step for step in client.events("step") if step["was_used"]]
    assert [event["share_averaged"] for event in finished] == [1.0, 1.0]
    assert [event["num_rounds"] for event in finished] == [run.num_epochs] * 2
    assert {step["epoch"] for step in used} == set(range(run.num_epochs))
    parameters = [load_file(tmp_path / f"{name}.safetensors") for name in ("reachable", "client")]
    assert largest_difference(*parameters) < 1e-6
