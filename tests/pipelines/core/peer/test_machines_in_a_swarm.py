"""Peers on unlike machines: pauses, limits, short precision, delayed averaging."""

import contextlib
import signal

import pytest
from swarm_of_processes import Swarm, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


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
