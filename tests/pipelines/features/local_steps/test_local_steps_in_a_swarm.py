"""Real peers that make steps of their own and synchronise how far they came (DiLoCo), against the plain formulas."""

import pytest
import torch
from made_up_tasks import joined, made_up_batch
from safetensors.torch import load_file
from swarm_of_processes import PATIENT, Swarm, tiny_run

from pipelines.core.optimizers.parameter_groups import weight_decay_groups
from pipelines.tasks.text_to_image.model import initial_model

pytestmark = [pytest.mark.slow, pytest.mark.swarm]

MICRO_BATCH = 4


def local_steps_run(**changes):
    settings = dict(
        local_steps=4,
        target_batch_size=24,
        inner_batch_size=8,
        inner_optimizer="adamw",
        peak_learning_rate=4e-3,
        outer_learning_rate=0.6,
        outer_momentum=0.5,
        num_epochs=4,
        num_warmup_epochs=1,
        progress_expiration_seconds=30.0,
    )
    return tiny_run(**(settings | changes))


def copy_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


class PlainPeer:
    """One worker of DiLoCo, algorithm 1, lines 3 to 9, without any of the code under test."""

    def __init__(self, run):
        self.run, self.model = run, initial_model(run)
        groups = weight_decay_groups(self.model.named_parameters(), run.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=1.0, betas=run.betas, eps=run.epsilon)

    def progress(self, synchronised, seeds, learning_rate):
        """Start at the synchronised parameters, step through the batches; return start minus end."""
        with torch.no_grad():
            for parameter, start in zip(self.model.parameters(), synchronised, strict=True):
                parameter.copy_(start)
        per_step = self.run.inner_batch_size // MICRO_BATCH
        for first in range(0, len(seeds), per_step):
            batches = [made_up_batch(self.run, seed, MICRO_BATCH) for seed in seeds[first : first + per_step]]
            self.step(batches, learning_rate * len(batches) / per_step)
        return [start - end.detach() for start, end in zip(synchronised, self.model.parameters(), strict=True)]

    def step(self, batches, learning_rate):
        self.optimizer.zero_grad()
        self.model(**joined(batches)).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.max_gradient_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()


def synchronised_parameters(run, seeds_of_epochs):
    """Yield the parameters after each synchronisation; `seeds_of_epochs[epoch][peer]` are the batches' seeds."""
    parameters = copy_of(initial_model(run))
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    workers = [PlainPeer(run) for _ in seeds_of_epochs[0]]
    for epoch, seeds_of_peers in enumerate(seeds_of_epochs):
        # One epoch of warm-up, then a linear fall to zero at the end of the run.
        factor = 0.5 if epoch == 0 else (run.num_epochs - epoch) / (run.num_epochs - 1)
        rate = run.peak_learning_rate * factor
        moves = [
            worker.progress(parameters, seeds, rate) for worker, seeds in zip(workers, seeds_of_peers, strict=True)
        ]
        total = sum(map(len, seeds_of_peers))
        for index, momentum in enumerate(momenta):
            mean = sum(len(seeds) / total * move[index] for seeds, move in zip(seeds_of_peers, moves, strict=True))
            momentum.mul_(run.outer_momentum).add_(mean)
            parameters[index] -= run.outer_learning_rate * (mean + run.outer_momentum * momentum)
        yield [parameter.clone() for parameter in parameters]


def test_uneven_peers_synchronise_to_the_parameters_of_the_formulas_and_send_a_fraction_of_the_bytes(tmp_path):
    run = local_steps_run(**PATIENT)
    with Swarm(tmp_path, run, num_peers=2) as swarm:
        peers = [
            swarm.start("quick", seconds_per_batch=0.06, save_epochs=True),
            swarm.start("slow", seconds_per_batch=0.4, save_epochs=True),
        ]
        finished = [peer.wait_for("finished") for peer in peers]
    steps = [[step for step in peer.events("step") if step["was_used"]] for peer in peers]
    assert {s["share_averaged"] for own in steps for s in own if s["ended_epoch"]} == {1.0}, "every round is whole"
    seeds = [[[s["seed"] for s in own if s["epoch"] == epoch] for own in steps] for epoch in range(run.num_epochs)]
    names = [name for name, _ in initial_model(run).named_parameters()]
    for epoch, expected in enumerate(synchronised_parameters(run, seeds)):
        quick, slow = (load_file(tmp_path / f"{peer.name}-{epoch + 1}.safetensors") for peer in peers)
        for name, parameter in zip(names, expected, strict=True):
            torch.testing.assert_close(quick[name], slow[name], atol=1e-6, rtol=0)
            torch.testing.assert_close(quick[name], parameter, atol=2e-5, rtol=0, msg=f"{name} after epoch {epoch}")
    samples = [MICRO_BATCH * len(own) for own in steps]
    assert samples[0] > 1.5 * samples[1]
    # Peers end an epoch when by their speeds it should be full: on a busy machine it is less so.
    assert sum(samples) > run.num_epochs * run.local_steps * run.target_batch_size / 2
    for peer, event in zip(peers, finished, strict=True):
        assert event["loss"] < peer.events("evaluation")[0]["loss"]
        assert event["num_rounds"] == run.num_epochs
    # Two peers send every float32 once per synchronisation; averaging each gradient would cost `local_steps` times it.
    sent = sum(own[-1]["bytes_per_sample"] * count for own, count in zip(steps, samples, strict=True))
    assert sent == pytest.approx(run.num_epochs * 2 * 4 * initial_model(run).num_parameters(), rel=0.05)


@pytest.mark.long
def test_a_newcomer_takes_over_the_synchronised_parameters_and_the_outer_momentum(tmp_path):
    run = local_steps_run(
        num_epochs=10_000, num_warmup_epochs=2, inner_optimizer="lamb",
        averaging_compression="blockwise_8bit", delay_optimizer_step=True, delay_gradient_averaging=True,
    )  # fmt: skip
    with Swarm(tmp_path, run, num_peers=1) as swarm:
        # An epoch of both has to last longer than it takes to be late for one.
        first = swarm.start("first", seconds_per_batch=0.2)
        first.wait_for("step", epoch=2)
        newcomer = swarm.start("newcomer", seconds_per_batch=0.2)
        ready = newcomer.wait_for("ready")
        for peer in (first, newcomer):
            peer.wait_for("step", has_averaged=True, was_used=True)
        for peer in (first, newcomer):
            peer.terminate()
        finished = [peer.wait_for("finished") for peer in (first, newcomer)]
    assert ready["source"] == "peers"
    assert ready["epoch"] >= 2
    assert all(event["num_rounds"] >= 1 for event in finished)
    start = first.events("evaluation")[0]["loss"]
    assert newcomer.events("evaluation")[0]["loss"] < start
    assert all(event["loss"] < start for event in finished)
