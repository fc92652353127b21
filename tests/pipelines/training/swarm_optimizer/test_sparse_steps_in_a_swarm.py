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
