"""Real peers that give each other the largest values of their progress: equal bits at the end, whatever dies or lies."""

import pytest
from safetensors.torch import load_file
from swarm_of_processes import PATIENT, Swarm, tiny_run

from pipelines.training.tasks.text_to_image.model import initial_model

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


def sparse_run(**changes):
    settings = dict(
        local_steps=4,
        target_batch_size=24,
        inner_batch_size=8,
        inner_optimizer="adamw",
        peak_learning_rate=4e-3,
        outer_learning_rate=1.0,
        outer_momentum=0,
        aggregation_rule="mean",
        synchronisation="sparse",
        num_epochs=4,
        num_warmup_epochs=1,
        **PATIENT,
    )
    return tiny_run(**(settings | changes))


def final_parameters(swarm, *peers):
    return [load_file(swarm.folder / f"{peer.name}.safetensors") for peer in peers]


def assert_equal_bits(first, *others):
    for other in others:
        assert all((first[name] == other[name]).all() for name in first)


def digests(peer):
    return {event["epoch"]: event["digest"] for event in peer.events("state")}


def test_four_peers_train_and_end_with_equal_parameters_for_a_few_bytes(tmp_path):
    run = sparse_run()
    with Swarm(tmp_path, run, num_peers=4) as swarm:
        peers = [swarm.start(name) for name in ("anna", "bert", "cleo", "dora")]
        finished = [peer.wait_for("finished") for peer in peers]
    assert_equal_bits(*final_parameters(swarm, *peers))
    for peer, event in zip(peers, finished, strict=True):
        assert event["num_rounds"] == run.num_epochs
        assert event["loss"] < peer.events("evaluation")[0]["loss"]
    num_parameters = initial_model(run).num_parameters()
    sent = sum(event["bytes_sent"] for event in finished)
    print(sent, num_parameters)


def start_fan_out(swarm, **settings):
    """Start an auxiliary peer; others trust it as an anchor once they know its key."""
    anchor = swarm.start(
        "anchor", "anchor_peer.py", key_file=str(swarm.folder / "anchor.pem"),
        checkpoint=str(swarm.folder / "checkpoint"), **settings,
    )  # fmt: skip
    swarm.anchor_keys.append(anchor.wait_for("ready")["key"])
    return anchor


def peer_id_of(peer):
    return peer.events("ready")[0]["addresses"][0].rpartition("/")[2]


def named_by(peer):
    return {tuple(suspect) for event in peer.events("step") for suspect in event["suspects"]}


def test_a_contribution_is_sent_once_where_there_is_a_fan_out_node_and_a_newcomer_takes_parameters_alone(tmp_path):
    run = sparse_run(num_epochs=6)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        anchor = start_fan_out(swarm)
        peers = [swarm.start(name, seconds_per_batch=0.3) for name in ("anna", "bert", "cleo")]
        peers[0].wait_for("step", epoch=2)
        newcomer = swarm.start("newcomer", num_peers=1)
        finished = [peer.wait_for("finished") for peer in (*peers, newcomer)]
        signed = anchor.wait_for("signed", epoch=run.num_epochs)
    print([event["bytes_sent"] for event in finished], [e["num_rounds"] for e in finished])
    assert newcomer.events("ready")[0]["source"] == "peers"
    assert_equal_bits(*final_parameters(swarm, *peers, newcomer))
    assert {digests(peer).get(run.num_epochs, signed["digest"]) for peer in peers} == {signed["digest"]}


@pytest.mark.parametrize(("kind", "offence"), [("dying", None), ("omitting", "NOT_PASSED_ON"), ("altering", "ALTERED")])
def test_whatever_a_fan_out_node_does_peers_stay_equal_and_name_it(tmp_path, kind, offence):
    run = sparse_run(num_epochs=5)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        fan_out = start_fan_out(swarm, deliveries=kind)
        peers = [swarm.start(name) for name in ("anna", "bert", "cleo")]
        finished = [peer.wait_for("finished") for peer in peers]
    print(kind, [event["num_rounds"] for event in finished], [named_by(peer) for peer in peers], fan_out.process.poll())
    assert_equal_bits(*final_parameters(swarm, *peers))
    if offence:
        assert {(peer_id_of(fan_out), offence)} in [named_by(peer) for peer in peers]


@pytest.mark.parametrize("kind", ["withholding", "dying"])
def test_a_member_that_announces_and_does_not_deliver_is_left_out_by_all(tmp_path, kind):
    run = sparse_run(num_epochs=4)
    with Swarm(tmp_path, run, num_peers=4) as swarm:
        peers = [swarm.start(name) for name in ("anna", "bert", "cleo")]
        other = swarm.start("other", deliveries=kind)
        finished = [peer.wait_for("finished") for peer in peers]
    print(kind, [event["num_rounds"] for event in finished], [named_by(peer) for peer in peers], other.process.poll())
    assert_equal_bits(*final_parameters(swarm, *peers))
    assert all(named_by(peer) == {(peer_id_of(other), "WITHHELD")} for peer in peers)
