"""A swarm computes what one process computes with the joined batches: whatever the shares, and nearly so in 8 bits."""

import pytest
import torch
from installed_features import needs_feature
from made_up_tasks import made_up_batch, made_up_task
from plain_training import train_alone
from safetensors.torch import load_file
from swarm_of_processes import PATIENT, Swarm, tiny_run

pytestmark = [pytest.mark.slow, pytest.mark.swarm]


def relative_difference(first: dict, second: dict) -> float:
    """Return the L2 norm of all differences, relative to that of the second's values."""
    assert first.keys() == second.keys()
    differences, values = ((first[n] - second[n]).norm() for n in first), (second[n].norm() for n in first)
    return (torch.stack(list(differences)).norm() / torch.stack(list(values)).norm()).item()


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        pytest.param("text-to-image", {}, marks=pytest.mark.long),
        pytest.param("text-to-image", dict(momentum_before_averaging=True), marks=pytest.mark.long),
        pytest.param(
            "text-to-image",
            dict(momentum_before_averaging=True, optimizer="muon", peak_learning_rate=2e-3),
            marks=[pytest.mark.long, needs_feature("optimizers")],
        ),
        pytest.param("fill-mask", {}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_two_uneven_peers_come_to_what_one_process_comes_to_with_the_very_same_samples(tmp_path, task, settings):
    """Shares of about 7:3, in other micro-batches: the average weighs samples, not peers and not micro-batches.

    In a language run it weighs predicted tokens: samples are unlike long, and padded to the longest of a micro-batch.
    """
    run = tiny_run(task, target_batch_size=40, num_epochs=6, **settings, **PATIENT)
    sizes = {"first": 7, "second": 3}
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        peers = [swarm.start(name, micro_batch_size=size, seconds_per_batch=0.25) for name, size in sizes.items()]
        for peer in peers:
            peer.wait_for("finished")
    used = [(step, sizes[peer.name]) for peer in peers for step in peer.events("step") if step["was_used"]]
    assert {step["share_averaged"] for step, _ in used if step["ended_epoch"]} == {1.0}, "every round is whole"
    shares = [sum(size for _, size in used if size == own) / sum(size for _, size in used) for own in (7, 3)]
    assert shares == pytest.approx([0.7, 0.3], abs=0.1)
    epochs = [
        [made_up_batch(run, step["seed"], size) for step, size in used if step["epoch"] == epoch]
        for epoch in range(run.num_epochs)
    ]
    expected = {name: value.detach() for name, value in train_alone(run, epochs).items()}
    for name in sizes:
        reached = load_file(tmp_path / f"{name}.safetensors")
        assert relative_difference(reached, expected) < 1e-6
    initial = made_up_task(run).new_model()
    assert relative_difference({n: p.detach() for n, p in initial.named_parameters()}, expected) > 1e-2


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [("lamb", 1e-2), ("adamw", 2e-3), pytest.param("muon", 2e-3, marks=needs_feature("optimizers"))],
)
def test_processors_with_other_instructions_have_equal_states_for_two_hundred_epochs(tmp_path, optimizer, rate):
    run = tiny_run(
        target_batch_size=16, num_epochs=200, optimizer=optimizer, peak_learning_rate=rate, optimizer_bits=8, **PATIENT
    )
    oldest = dict(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41")
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        first = swarm.start("first", num_threads=2)
        swarm.environment = oldest
        second = swarm.start("second")
        for peer in (first, second):
            peer.wait_for("finished", seconds=1500)
    if first.events("ready")[0]["instructions"] == second.events("ready")[0]["instructions"]:
        pytest.skip("this processor has no instructions that the oldest ones have not")
    of_first, of_second = ({seen["epoch"]: seen["digest"] for seen in peer.events("state")} for peer in (first, second))
    # Initial parameters, which each draws itself, differ by roundings; one has then taken over the other's state.
    both = sorted(epoch for epoch in of_first.keys() & of_second.keys() if epoch > 2)
    assert len(both) >= 190
    assert [epoch for epoch in both if of_first[epoch] != of_second[epoch]] == []
    assert len(set(of_first.values())) == len(of_first)
