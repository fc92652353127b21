"""The simulated swarm beside peers that are processes and average over connections: equal in every bit."""

import pytest
import torch
from made_up_tasks import made_up_batch, made_up_task
from safetensors.torch import load_file
from swarm_of_processes import PATIENT, Swarm, tiny_run
from swarm_simulator import SimulatedSwarm, SparseRounds

from pipelines.core.optimizers.parameter_groups import in_optimizer_order

MICRO_BATCH = 4
AS_SENT, THE_OTHER_WAY = (0, 1), (1, 0)
SETTINGS = {
    "local steps": dict(local_steps=3, inner_batch_size=8, outer_learning_rate=0.6, outer_momentum=0.5),
    # The norm of all gradients would make each tensor's step depend on the order in which another's parts came.
    "gradients in 8 bits": dict(averaging_compression="blockwise_8bit", max_gradient_norm=1e9, optimizer_bits=8),
}


def parameters_after(run, batches_of_epochs, orders):
    """Return a simulated swarm's parameters by name; `orders[number][epoch]` is the order of a tensor's parts."""
    with SimulatedSwarm(made_up_task(run), num_peers=2) as swarm:
        for epoch, batches in enumerate(batches_of_epochs):
            swarm.epoch(batches, lambda number, epoch=epoch: orders[number][epoch])
        assert all(
            torch.equal(first, second)
            for first, second in zip(swarm.peers[0].model.parameters(), swarm.peers[1].model.parameters(), strict=True)
        )
        return {name: parameter.detach().clone() for name, parameter in swarm.model.named_parameters()}


def numbers_of_unequal(run, found, expected):
    """Return which tensors differ, by their numbers in the order in which they are averaged."""
    model = made_up_task(run).new_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    in_order = [names[id(parameter)] for parameter in in_optimizer_order(model)]
    return [number for number, name in enumerate(in_order) if not torch.equal(found[name], expected[name])]


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.long
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_two_simulated_peers_have_the_parameters_of_two_processes_in_every_bit(tmp_path, settings):
    """a * x + b * y is rounded once if the processor fuses the second product with the sum: the last bit depends on
    whose part came first. So each tensor may have been averaged in either order; nothing else is left open. What the
    order was a later epoch may show: the first step is one of signs, which says nothing of a gradient's last bit."""
    run = tiny_run(target_batch_size=20, num_epochs=3, num_warmup_epochs=1, **PATIENT, **settings)
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        peers = [
            swarm.start(name, seconds_per_batch=seconds, save_epochs=True, micro_batch_size=MICRO_BATCH)
            for name, seconds in (("quick", 0.1), ("slow", 0.3))
        ]
        for peer in peers:
            peer.wait_for("finished")
    steps = [[step for step in peer.events("step") if step["was_used"]] for peer in peers]
    assert {step["share_averaged"] for own in steps for step in own if step["ended_epoch"]} == {1.0}
    batches_of_epochs = [
        [[made_up_batch(run, s["seed"], MICRO_BATCH) for s in own if s["epoch"] == epoch] for own in steps]
        for epoch in range(run.num_epochs)
    ]
    assert len({len(own) for batches in batches_of_epochs for own in batches}) > 1, "peers weigh unequally"
    possible = [[()] for _ in in_optimizer_order(made_up_task(run).new_model())]
    for epoch in range(run.num_epochs):
        expected = load_file(tmp_path / f"quick-{epoch + 1}.safetensors")
        tried = [[(*orders, order) for orders in own for order in (AS_SENT, THE_OTHER_WAY)] for own in possible]
        possible = [[] for _ in tried]
        for turn in range(max(map(len, tried))):
            orders_of_tensors = [own[turn % len(own)] for own in tried]
            found = parameters_after(run, batches_of_epochs[: epoch + 1], orders_of_tensors)
            unequal = numbers_of_unequal(run, found, expected)
            for number, orders in enumerate(orders_of_tensors):
                if number not in unequal and turn < len(tried[number]):
                    possible[number].append(orders)
        assert all(possible), f"after epoch {epoch}: {[number for number, own in enumerate(possible) if not own]}"


def test_peers_of_unequal_samples_average_to_the_weighted_mean():
    """Of samples, not of peers; two peers in one process need no swarm for that."""
    run = tiny_run(target_batch_size=24, num_epochs=2)
    task = made_up_task(run)
    batches = [[made_up_batch(run, seed, 4) for seed in seeds] for seeds in ((1, 2, 3, 4), (5, 6))]
    with SimulatedSwarm(task, num_peers=2) as swarm:
        swarm.epoch(batches)
        averages = swarm.last_average
    model = task.new_model()
    sum(task.loss(model, batch)[0] for own in batches for batch in own).div(24).backward()
    for parameter, average in zip(in_optimizer_order(model), averages, strict=True):
        torch.testing.assert_close(average, parameter.grad, atol=1e-6, rtol=1e-4)


def test_peers_with_sparse_rounds_stay_equal_and_move_along_the_largest_values_of_their_progress():
    run = tiny_run(
        target_batch_size=8,
        num_epochs=3,
        local_steps=2,
        inner_batch_size=4,
        outer_learning_rate=1.0,
        outer_momentum=0.0,
    )
    sparse = SparseRounds(k=64, decay=1.0)
    with SimulatedSwarm(made_up_task(run), 2, sparse) as swarm:
        for epoch in range(run.num_epochs):
            before = [parameter.detach().clone() for parameter in in_optimizer_order(swarm.model)]
            swarm.epoch([[made_up_batch(run, 10 * epoch + seed, 4) for seed in own] for own in ((1, 2), (3, 4))])
            for old, new, average in zip(before, in_optimizer_order(swarm.model), swarm.last_average, strict=True):
                torch.testing.assert_close(old - new, average, atol=1e-6, rtol=0)
                if average.ndim > 1:
                    # Two peers, each with 64 of 4,096 values, rounded up in every chunk.
                    assert 0 < (average != 0).sum() <= 2 * (average.numel() / 64 + average.numel() // 4096 + 1)
        for first, second in zip(swarm.peers[0].model.parameters(), swarm.peers[1].model.parameters(), strict=True):
            assert torch.equal(first, second)
    assert len(sparse.bytes_per_value) == 2 * run.num_epochs
