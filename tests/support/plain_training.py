"""Training without a swarm: what peers together must come to."""

import torch
from made_up_tasks import joined, made_up_task

from pipelines.core.optimizers.choice import gradient_momentum, linear_schedule, optimizer_parts


def largest_difference(first: dict, second: dict) -> float:
    """Return the largest difference between two models' parameters, by name."""
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def train_alone(run, batches_of_epochs):
    """Train in this process on the very batches that the peers used, all of an epoch joined into one."""
    task = made_up_task(run)
    model = task.new_model()
    parts = optimizer_parts(run, model)
    optimizer = parts["optimizer"](parts["params"])
    schedule = linear_schedule(optimizer, run.num_warmup_epochs, run.num_epochs)
    momentum, num_samples = gradient_momentum(run), 0.0
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for batches in batches_of_epochs:
        batch = joined(batches)
        model.zero_grad()
        total, weight = task.loss(model, batch)
        (total / weight).backward()
        num_samples = momentum * num_samples + weight
        for gathered, parameter in zip(sums, model.parameters(), strict=True):
            gathered.mul_(momentum).add_(parameter.grad, alpha=weight)
            parameter.grad = gathered / num_samples
        optimizer.step()
        schedule.step()
    return dict(model.named_parameters())
