"""Real peers that give each other the largest values of their progress: equal bits, whatever dies or lies."""

import pytest
from admission_material import edit_lists, publish_run, running_service
from forked_processes import ForkedProcess, fork_server, printed_json
from published_runs import command_environment
from safetensors.torch import load_file
from support_files import SUPPORT
from swarm_of_processes import PATIENT, Swarm, tiny_run

from pipelines.features.sparse.codec import SparseCodec
from pipelines.tasks.text_to_image.model import initial_model

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


def size_of_a_contribution(run):
    """Return the bytes that one may have, 0.03 for each parameter, and what they are the size of."""
    codec = SparseCodec([tuple(p.shape) for p in initial_model(run).parameters()], k=run.sparse_values_per_chunk)
    assert codec.most_bytes <= 0.03 * initial_model(run).num_parameters()
    return codec.most_bytes


@pytest.mark.long
def test_contributions_larger_than_a_sockets_buffer_are_averaged_by_their_samples(tmp_path):
    log = tmp_path / "pair.log"
    pair = ForkedProcess(fork_server(), str(SUPPORT / "contribution_pair.py"), [], log)
    assert pair.wait(240) == 0, log.read_text(encoding="utf-8")
    found = printed_json(log)
    assert found["are_equal"] == [True, True]
    assert found["is_weighted"]
    assert found["sent"] == found["sizes"] and min(found["sizes"]) > 2**19


@pytest.mark.long
def test_contributions_travel_while_the_next_epoch_is_computed(tmp_path):
    run = sparse_run(delay_optimizer_step=True, delay_gradient_averaging=True, num_epochs=6)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        peers = [swarm.start(name, seconds_per_batch=0.3) for name in ("anna", "bert", "cleo")]
        for peer in peers:
            assert peer.wait_for("finished")["num_rounds"] >= run.num_epochs - 1
    assert_equal_bits(*final_parameters(swarm, *peers))


@pytest.mark.long
def test_members_of_a_run_with_an_authority_contribute(hub, tmp_path):
    run, names = sparse_run(run_id="sparse", num_epochs=3), ("anna", "bert", "client")
    tokens = {name: hub.create_user(f"{name}-of-sparse") for name in names}
    publish_run(hub, "org/sparse", run.to_json())
    edit_lists(hub, "org/sparse", {"allow": [f"{name}-of-sparse" for name in names]})
    with running_service(hub, "org/sparse", tmp_path, lifetime_seconds=600.0) as service:
        door = dict(authorization_service=service.address, authorization_key=service.key.public)
        with Swarm(
            tmp_path, run.replace(**door), num_peers=3, environment=command_environment(hub, hub.alice_token)
        ) as swarm:
            peers = [swarm.start(n, hub_token=token, client_mode=n == "client") for n, token in tokens.items()]
            finished = [peer.wait_for("finished") for peer in peers]
    assert_equal_bits(*final_parameters(swarm, *peers))
    assert all(event["num_rounds"] >= run.num_epochs - 1 for event in finished)


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


def test_a_contribution_is_sent_once_where_there_is_a_fan_out_node_and_a_newcomer_needs_parameters_alone(tmp_path):
    run = sparse_run(num_epochs=10_000, num_warmup_epochs=2)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        anchor = start_fan_out(swarm)
        peers = [swarm.start(name, seconds_per_batch=0.3) for name in ("anna", "bert", "cleo")]
        # In the first round nobody knows the fan-out node yet.
        first, later = [[peer.wait_for("step", num_rounds=number) for peer in peers] for number in (1, 4)]
        newcomer = swarm.start("newcomer", seconds_per_batch=0.3, num_peers=1)
        newcomer.wait_for("step", has_averaged=True)
        step = newcomer.wait_for("step", has_averaged=True, ended_epoch=True)
        state = newcomer.wait_for("state", epoch=step["epoch"] + 1)
        same = [peer.wait_for("state", epoch=state["epoch"])["digest"] for peer in peers]
        anchor.wait_for("signed", epoch=state["epoch"], digest=state["digest"])
    assert newcomer.events("ready")[0]["source"] == "peers"
    assert set(same) == {state["digest"]}
    # Three members need each of nine contributions; a busy machine may make a peer send one more than once.
    sent = sum(after["bytes_sent"] - before["bytes_sent"] for before, after in zip(first, later, strict=True))
    assert sent <= 9 * 1.5 * size_of_a_contribution(run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "offence"),
    [("altering", "ALTERED"), ("omitting", "NOT_PASSED_ON"), ("dying", None)],
)
def test_whatever_a_fan_out_node_does_peers_stay_equal_and_name_it(tmp_path, kind, offence):
    run = sparse_run(num_epochs=5)
    with Swarm(tmp_path, run, num_peers=3) as swarm:
        fan_out = start_fan_out(swarm, transfers=kind)
        peers = [swarm.start(name) for name in ("anna", "bert", "cleo")]
        for peer in peers:
            peer.wait_for("finished")
    assert_equal_bits(*final_parameters(swarm, *peers))
    if offence:
        assert {(peer_id_of(fan_out), offence)} in [named_by(peer) for peer in peers]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dying", "withholding"])
def test_a_member_that_announces_and_does_not_deliver_is_left_out_by_all(tmp_path, kind):
    run = sparse_run(num_epochs=4)
    with Swarm(tmp_path, run, num_peers=4) as swarm:
        peers = [swarm.start(name) for name in ("anna", "bert", "cleo")]
        other = swarm.start("other", transfers=kind)
        for peer in peers:
            peer.wait_for("finished")
    assert_equal_bits(*final_parameters(swarm, *peers))
    assert all(named_by(peer) == {(peer_id_of(other), "WITHHELD")} for peer in peers)
