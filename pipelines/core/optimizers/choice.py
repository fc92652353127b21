"""Builds the optimizers and the schedule that a run asks for."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypedDict

import torch
from torch.optim.optimizer import ParamsT

from pipelines.core.named_features import named_feature
from pipelines.core.optimizers.adamw import AdamW
from pipelines.core.optimizers.lamb import Lamb
from pipelines.core.optimizers.schedule import linear_factor
from pipelines.core.run.training_run import TrainingRun

OPTIMIZERS: Mapping[str, type[Lamb] | str] = {
    "lamb": Lamb,
    "adamw": AdamW,
    "muon": "pipelines.features.optimizers.muon:Muon",
}
"""By the name in a run's settings, which `sections.OPTIMIZERS` has, too; a feature's is imported when a run asks."""

OUTER_PARTS = "pipelines.features.local_steps.nesterov:outer_parts"


class OptimizerContext(TypedDict):
    """What the state that all peers share is built from."""

    params: ParamsT
    optimizer: Callable[[ParamsT], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LambdaLR] | None


def optimizer_parts(run: TrainingRun, model: torch.nn.Module) -> OptimizerContext:
    """Return the parameters, optimizer factory and schedule factory of the state that all peers share, in one order.

    With local steps this is the outer optimizer.
    """
    if run.local_steps > 1:
        return named_feature(OUTER_PARTS)(run, model)
    schedule = partial(linear_schedule, num_warmup=run.num_warmup_epochs, num_total=run.num_epochs)
    return dict(params=parameter_groups(run, model), optimizer=optimizer_factory(run), scheduler=schedule)


def optimizer_factory(run: TrainingRun) -> partial[Lamb]:
    """Return a factory of the run's optimizer, with local steps of the inner one, from parameter groups.

    Momentum that gradients already contain is not added again.
    """
    return partial(
        optimizer_type(run.stepping_optimizer),
        lr=run.peak_learning_rate,
        betas=(0.0 if gradient_momentum(run) else run.betas[0], run.betas[1]),
        eps=run.epsilon,
        max_gradient_norm=run.max_gradient_norm,
        bits=run.optimizer_bits,
    )


def gradient_momentum(run: TrainingRun) -> float:
    """Return the momentum that peers add to their own gradients; the optimizer then adds none."""
    return run.betas[0] if run.momentum_before_averaging else 0.0


def parameter_groups(run: TrainingRun, model: torch.nn.Module) -> list[dict]:
    """Return the groups of what steps along gradients; ValueError if the model has none that the optimizer is for."""
    return optimizer_type(run.stepping_optimizer).groups(model, run.weight_decay)


def optimizer_type(name: str) -> type[Lamb]:
    """Return the optimizer of this name in a run's settings; raises as `named_feature`."""
    found = OPTIMIZERS[name]
    return named_feature(found) if isinstance(found, str) else found


def linear_schedule(
    optimizer: torch.optim.Optimizer, num_warmup: int, num_total: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a linear warm-up from 0 over `num_warmup` epochs and a linear fall to 0 at `num_total` (section 3.3)."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(linear_factor, num_warmup=num_warmup, num_total=num_total)
    )
