"""Two real averagers in one process train two copies of a tiny model together; a third copy trains alone, exactly.

Usage: python averager_pair.py RUN.json. Prints the evaluation losses of the three after every epoch as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from made_up_tasks import joined, made_up_batch

from pipelines.swarm.network_options import NetworkOptions
from pipelines.swarm.node import open_dht, visible_addresses
from pipelines.training.averaging.wire.codec import averaging_compression
from pipelines.training.optimizers.choice import linear_schedule, optimizer_parts
from pipelines.training.peer.process_group import guard_process_group
from pipelines.training.run.training_run import TrainingRun
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.tasks.text_to_image.model import initial_model

BATCH_SIZE = 16
LOOPBACK = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))


class Learner:
    """A model with the run's optimizer, which trains on given gradients."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.model, self.losses = run, initial_model(run), []
        parts = optimizer_parts(run, self.model)
        self.optimizer = parts["optimizer"](parts["params"])
        self.schedule = linear_schedule(self.optimizer, run.num_warmup_epochs, run.num_epochs)
        self.parameters = list(self.model.parameters())

    def compute_gradient(self, *seeds: int) -> None:
        batches = [made_up_batch(self.run, seed, BATCH_SIZE) for seed in seeds]
        self.model.zero_grad()
        self.model(**joined(batches), return_logits=False).loss.backward()

    def step(self) -> None:
        self.optimizer.step()
        self.schedule.step()
        batch = made_up_batch(self.run, 2**31, BATCH_SIZE)
        with torch.no_grad():
            loss = self.model(input_ids=batch["input_ids"], image_codes=batch["image_codes"], return_logits=False).loss
        self.losses.append(loss.item())


def train(run: TrainingRun) -> dict[str, list[float]]:
    first, second, alone = (Learner(run) for _ in range(3))
    with (
        open_dht("test/run", (), LOOPBACK, admission=None) as entry,
        open_dht("test/run", visible_addresses(entry), LOOPBACK, admission=None) as other,
    ):
        averagers = [
            SwarmGradientAverager(
                learner.parameters, dht=dht, admission=None, prefix=run.run_id, compression=averaging_compression(run),
                target_group_size=2, min_matchmaking_time=2.0, request_timeout=0.8, start=True,
            )
            for learner, dht in ((first, entry), (second, other))
        ]  # fmt: skip
        for epoch in range(run.num_epochs):
            alone.compute_gradient(2 * epoch, 2 * epoch + 1)
            for number, (learner, averager) in enumerate(zip((first, second), averagers, strict=True)):
                learner.compute_gradient(2 * epoch + number)
                averager.accumulate_grads_(batch_size=BATCH_SIZE)
            for control in [averager.step(wait=False, timeout=60.0) for averager in averagers]:
                control.result(60.0)
            for learner, averager in zip((first, second), averagers, strict=True):
                assert averager.last_round.share_averaged == 1.0
                with averager.get_tensors() as gradients:
                    for parameter, gradient in zip(learner.parameters, gradients, strict=True):
                        parameter.grad.copy_(gradient)
                averager.notify_used_averaged_gradients()
            for learner in (first, second, alone):
                learner.step()
        for averager in averagers:
            averager.shutdown()
    return dict(first=first.losses, second=second.losses, alone=alone.losses)


if __name__ == "__main__":
    guard_process_group()
    torch.set_num_threads(1)
    print(json.dumps(train(TrainingRun.from_file(Path(sys.argv[1])))))
