"""Local steps: what a peer does with gradients until the swarm has enough samples (Douillard et al., 2023).

Peers average their progress instead of every gradient: the averaged vector is the pseudo-gradient of the outer
optimizer, whose parameters and momentum are the state that newcomers, the auxiliary peer and checkpoints see.
"""

from collections.abc import Iterable, Sequence

import torch

from pipelines.core.epoch.gathering import GradientSum, SummedGradients
from pipelines.core.optimizers.choice import optimizer_factory, parameter_groups
from pipelines.core.optimizers.schedule import learning_rate
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState


class InnerSteps:
    """The inner half of DiLoCo: the inner optimizer and the starting point of the peer's own progress.

    Inner steps update the model on its device; the synchronised parameters are kept separately. A peer sends the
    pseudo-gradient: the parameters it started from minus its current ones.

    `parameters` are the model's, in the order of the shared state; `model` is on the device that computes.
    """

    def __init__(self, run: TrainingRun, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._run, self._parameters = run, tuple(parameters)
        self.optimizer = optimizer_factory(run)(parameter_groups(run, model))
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


class LocalSteps(SummedGradients):
    """Inner steps of `inner_batch_size` samples; the progress since the last synchronisation is averaged.

    The model's parameters are this peer's own; those of the swarm are in the training state.
    """

    def __init__(self, run: TrainingRun, model: torch.nn.Module, state: TrainingState) -> None:
        super().__init__(GradientSum(state.main_parameters))
        self._run, self._state = run, state
        self._num_samples = self._samples_sent = 0  # of all inner steps since the last round, and until then
        self._inner = InnerSteps(run, model, state.main_parameters)
        # New parameters do not overwrite the model's: the model's progress since then is applied on top of them.
        state.apply_parameters = self._rebase

    @property
    def num_samples(self) -> int:
        """See `SummedGradients`."""
        return self._num_samples

    def add(self, num_samples: int, epoch: int) -> int:
        """See `SummedGradients`."""
        self._sum.add(num_samples)
        self._num_samples += num_samples
        if self._sum.num_samples >= self._run.inner_batch_size:
            self._make_inner_step(epoch)
        return self._num_samples

    def finish(self, epoch: int) -> None:
        """See `SummedGradients`: the pseudo-gradient."""
        if self._sum.num_samples:
            self._make_inner_step(epoch)
        self._inner.take_pseudo_gradient(self._sum.gathered())
        self._samples_sent, self._num_samples = self._num_samples, 0

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor]) -> float:
        """See `SummedGradients`."""
        for tensor, progress in zip(tensors, self._sum.gathered(), strict=True):
            tensor.copy_(progress)
        return self._samples_sent

    def take_back(self) -> int:
        """See `SummedGradients`."""
        self._num_samples += self._samples_sent
        self._samples_sent = 0
        self._take_progress_back()
        self._sum.reset()
        return self._num_samples

    def restart(self, *, keep_gradient: bool) -> int:
        """See `SummedGradients`. Progress from an older state is useless for a newer one: it is never kept."""
        self._sum.reset()
        self._num_samples = 0
        self._inner.restart(self._state.optimized_parameters)
        return 0

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """See `SummedGradients`: the inner optimizer's statistics, too."""
        yield from super().own_tensors()
        for state in self._inner.optimizer.state.values():
            yield from state.values()

    def _make_inner_step(self, epoch: int) -> None:
        """Step along the gathered samples' mean gradient; a smaller step if they are fewer than an inner batch."""
        num_samples = self._sum.num_samples
        self._inner.step(
            self._sum.gathered(),
            epoch=epoch,
            scale=self._sum.scale_of_mean(num_samples),
            share=min(1.0, num_samples / self._run.inner_batch_size),
        )
        self._sum.reset()

    def _take_progress_back(self) -> None:
        self._inner.take_back(self._sum.gathered())

    def _rebase(self) -> None:
        self._inner.rebase(self._state.optimized_parameters)
