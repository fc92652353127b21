"""An optimizer that the user brings, any of `torch.optim`'s kind, as the one that all peers of a run step with."""

import inspect
import logging
from collections import defaultdict
from functools import partial
from typing import Any

import torch

from pipelines.core.optimizers.choice import OptimizerContext, linear_schedule
from pipelines.core.optimizers.lamb import global_norm
from pipelines.core.run.training_run import TrainingRun

logger = logging.getLogger(__name__)

COMPARED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.Muon)
"""Optimizers whose states were compared between peers with other numbers of threads."""


class UnsuitableOptimizerError(ValueError):
    """The swarm cannot step with this optimizer; the message says why and what to do."""


def own_optimizer_parts(run: TrainingRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> OptimizerContext:
    """Return the parts of a state that is stepped as a user's optimizer would step its model's parameters.

    The optimizer itself is left alone: a copy with its options steps the swarm's copy of the parameters, with its own
    learning rates times the factor of the run's schedule.

    Raises:
        UnsuitableOptimizerError: it steps parameters that are not the model's, has stepped already, keeps a state that
            cannot be shared, or the run wants something else than an optimizer that steps along gradients.
    """
    _check(run, model, optimizer)
    if type(optimizer) not in COMPARED:
        logger.warning(
            "Whether peers with other numbers of threads end each step of %s with equal bits was never tested. Where "
            "they do not, they download the state from each other.",
            type(optimizer).__name__,
        )
    groups = [
        {name: value for name, value in group.items() if name != "initial_lr"} for group in optimizer.param_groups
    ]
    schedule = partial(linear_schedule, num_warmup=run.num_warmup_epochs, num_total=run.num_epochs)
    return dict(params=groups, optimizer=partial(_copy, optimizer, run.max_gradient_norm), scheduler=schedule)


def _check(run: TrainingRun, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    name, own = type(optimizer).__name__, {id(parameter) for parameter in model.parameters()}
    if not all(id(parameter) in own for parameter in _parameters(optimizer.param_groups)):
        raise UnsuitableOptimizerError(
            f"{name} steps parameters that are not the model's. Make it of model.parameters(), after the model was "
            "moved to its device."
        )
    if any("step" not in state or state["step"] > 0 for state in optimizer.state.values()):
        raise UnsuitableOptimizerError(f"{name} has stepped already. Give it new: a swarm begins with no statistics.")
    for setting, wanted in (("local_steps", 1), ("momentum_before_averaging", False)):
        if getattr(run, setting) != wanted:
            raise UnsuitableOptimizerError(
                f"The run has {setting}={getattr(run, setting)}, and an optimizer of your own steps along the averaged "
                f"gradients of each epoch. Leave out the optimizer, or {setting}."
            )


def _copy(
    optimizer: torch.optim.Optimizer, max_gradient_norm: float, groups: list[dict[str, object]]
) -> torch.optim.Optimizer:
    """Return an optimizer with the same options for other parameters, and the state of one that begins."""
    kind = type(optimizer)
    copied: torch.optim.Optimizer = object.__new__(type(kind.__name__, (_SwarmStep, kind), {}))
    # Not its constructor: what its arguments were cannot be asked. A scheduler may have replaced `step`.
    copied.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    both = zip(_parameters(optimizer.param_groups), _parameters(groups), strict=True)
    begun = {new: {key: _cloned(value) for key, value in optimizer.state[old].items()} for old, new in both}
    copied.__setstate__(dict(state=defaultdict(dict, begun), param_groups=groups))
    copied.__dict__["max_gradient_norm"] = max_gradient_norm
    _make_statistics(copied, kind.__name__)
    return copied


def _parameters(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [parameter for group in groups for parameter in group["params"]]


def _cloned(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


class _SwarmStep:
    """Clips the gradient's global norm, and steps with one thread, as more would add up sums in another order."""

    max_gradient_norm: float

    @torch.no_grad()
    def step(self: Any, closure: None = None) -> None:
        length, limit = global_norm(self), self.max_gradient_norm
        whole = {parameter: parameter.grad for parameter in _parameters(self.param_groups)}
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if length > limit:
                for parameter, gradient in whole.items():
                    parameter.grad = None if gradient is None else gradient * (limit / length)
            super().step()  # type: ignore[misc]
        finally:
            torch.set_num_threads(num_threads)
            for parameter, gradient in whole.items():
                parameter.grad = gradient


def _make_statistics(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Have all statistics, as after a step of zeros along zeros, which leaves the parameters as they were.

    The swarm shares tensors, and their names and shapes must be known before the first step.
    """
    parameters = _parameters(optimizer.param_groups)
    before = [(parameter.detach().clone(), parameter.grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
        parameter.detach().zero_()  # weight decay would enter the momentum
    try:
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        step = inspect.signature(super(_SwarmStep, optimizer).step)  # type: ignore[misc]
        needs_closure = step.parameters["closure"].default is not None
        why = "needs a closure" if needs_closure else str(error).splitlines()[0]
        raise UnsuitableOptimizerError(f"{name} cannot step along gradients alone: {why}. Choose another.") from error
    with torch.no_grad():
        for parameter, (value, gradient) in zip(parameters, before, strict=True):
            parameter.copy_(value)
            parameter.grad = gradient
    for state in optimizer.state.values():
        for key, value in state.items():
            if value is not None and not isinstance(value, torch.Tensor):
                raise UnsuitableOptimizerError(
                    f"{name} keeps {key} as {type(value).__name__}, and the swarm shares tensors alone. Take one of "
                    "torch.optim."
                )
            if key == "step":
                value.zero_()
