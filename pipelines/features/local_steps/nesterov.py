"""Nesterov steps along the averaged progress: the outer optimizer of local steps (Douillard et al., 2023)."""

from functools import partial

import torch
from torch.optim.optimizer import ParamsT

from pipelines.core.optimizers.choice import OptimizerContext
from pipelines.core.optimizers.lamb import global_norm
from pipelines.core.optimizers.parameter_groups import weight_decay_groups
from pipelines.core.run.training_run import TrainingRun


class Nesterov(torch.optim.Optimizer):
    """Gradient descent with Nesterov momentum: m = momentum * m + g, then parameter -= lr * (g + momentum * m).

    The outer optimizer of runs with local steps. Like LAMB it has all its state from the start and refuses non-finite
    gradients; torch's own starts without state and its settings differ between releases. Without momentum it has none.
    """

    def __init__(self, params: ParamsT, *, lr: float, momentum: float) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum))
        for group in self.param_groups if momentum else ():
            for parameter in group["params"]:
                self.state[parameter] = {"momentum": torch.zeros_like(parameter, requires_grad=False)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's takes closures; unused here
        """Update all parameters that have a gradient.

        Raises:
            ValueError: the global gradient norm is not finite; nothing has changed then.
        """
        global_norm(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    direction = gradient
                    if group["momentum"]:
                        momentum = self.state[parameter]["momentum"].mul_(group["momentum"]).add_(gradient)
                        direction = momentum.mul(group["momentum"]).add_(gradient)
                    parameter.sub_(direction * group["lr"])


def outer_parts(run: TrainingRun, model: torch.nn.Module) -> OptimizerContext:
    """Return the parts of the state that all peers share: Nesterov steps at a constant rate; see `optimizer_parts`."""
    groups = weight_decay_groups(model.named_parameters(), run.weight_decay)
    outer = partial(Nesterov, lr=run.outer_learning_rate, momentum=run.outer_momentum)
    # The inner optimizer decays the weights; decayed twice, they would shrink with every synchronisation.
    return dict(params=[dict(params=group["params"]) for group in groups], optimizer=outer, scheduler=None)
