"""Local steps of a peer between two synchronisations: the inner half of DiLoCo (Douillard et al., 2023).

Inner steps update the model on its device; the synchronised parameters are kept separately. A peer sends the
pseudo-gradient: the parameters it started from minus its current ones.
"""

from collections.abc import Sequence

import torch

from pipelines.core.optimizers.choice import inner_optimizer
from pipelines.core.optimizers.schedule import learning_rate
from pipelines.core.run.training_run import TrainingRun


class InnerSteps:
    """The inner optimizer and the starting point of the peer's own progress.

    `parameters` are the model's, in the order of the shared state; `model` is on the device that computes.
    """

    def __init__(self, run: TrainingRun, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._run, self._parameters = run, tuple(parameters)
        self.optimizer = inner_optimizer(run, model)
        # On the CPU: it is used once per synchronisation, and the device's memory is scarce.
        self._start = tuple(parameter.detach().to("cpu", copy=True) for parameter in self._parameters)

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor], *, epoch: int, scale: float, share: float) -> None:
        """Make one inner step along `scale * gradients`, which it consumes.

        The learning rate is the schedule's in this epoch times `share`, in (0, 1]: a step of fewer samples is smaller.
        """
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.mul_(scale)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._run, epoch) * share
        self.optimizer.step()

    @torch.no_grad()
    def take_pseudo_gradient(self, receivers: Sequence[torch.Tensor]) -> None:
        """Write start minus current parameters into the receivers; progress is measured from here on."""
        for parameter, start, receiver in zip(self._parameters, self._start, receivers, strict=True):
            present = parameter.detach().to("cpu")
            receiver.copy_(start - present)
            start.copy_(present)

    @torch.no_grad()
    def take_back(self, pseudo_gradient: Sequence[torch.Tensor]) -> None:
        """Measure progress from the starting point before `take_pseudo_gradient`, which gave this."""
        for start, taken in zip(self._start, pseudo_gradient, strict=True):
            start.add_(taken)

    @torch.no_grad()
    def rebase(self, synchronised: Sequence[torch.Tensor]) -> None:
        """Apply the progress since the pseudo-gradient was taken on top of new synchronised parameters."""
        for parameter, start, new in zip(self._parameters, self._start, synchronised, strict=True):
            progress = parameter.detach().to("cpu") - start
            parameter.copy_(new + progress)
            start.copy_(new)

    @torch.no_grad()
    def restart(self, synchronised: Sequence[torch.Tensor]) -> None:
        """Start over at the synchronised parameters; the peer's own progress is discarded."""
        for parameter, start, new in zip(self._parameters, self._start, synchronised, strict=True):
            parameter.copy_(new)
            start.copy_(new)
