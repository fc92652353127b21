"""What becomes of a peer's gradients until the swarm has enough samples: they are summed, or lead to local steps.

With local steps peers average how far they came instead of every gradient: the averaged vector is the pseudo-gradient,
and the optimizer that takes it is the outer one, whose parameters and momentum are the state that newcomers, the
auxiliary peer and checkpoints see.
"""

from typing import Protocol

import torch

from pipelines.training.run.training_run import TrainingRun
from pipelines.training.state.averager import SwarmStateAverager
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager
from pipelines.training.swarm_optimizer.inner_steps import InnerSteps


class Gathering(Protocol):
    """What a training peer does between two rounds of averaging."""

    def add(self, num_samples: int, epoch: int) -> int:
        """Count the mean gradient of so many samples, in the parameters' `.grad`; return the epoch's samples so far."""

    def finish(self, epoch: int) -> None:
        """Leave with the gradient averager what is to be averaged now, and its weight."""

    def restart(self, *, keep_gradient: bool) -> int:
        """Begin anew, after a change of the state from outside; return the samples that count still."""


class SummedGradients:
    """Every gradient is summed, and the sum is averaged."""

    def __init__(self, averager: SwarmGradientAverager) -> None:
        self._averager = averager

    def add(self, num_samples: int, epoch: int) -> int:
        """See `Gathering`."""
        self._averager.accumulate_grads_(num_samples)
        return self._averager.local_samples_accumulated

    def finish(self, epoch: int) -> None:
        """See `Gathering`: the averager has it all."""

    def restart(self, *, keep_gradient: bool) -> int:
        """See `Gathering`."""
        if keep_gradient:
            self._averager.take_back()
        else:
            self._averager.forget_gradients()
        return self._averager.local_samples_accumulated


class LocalSteps:
    """Inner steps of `inner_batch_size` samples; what is averaged is the way from the last synchronisation.

    The model's parameters are this peer's own; those of the swarm are in the state averager.
    """

    def __init__(
        self, run: TrainingRun, model: torch.nn.Module, averager: SwarmGradientAverager, state: SwarmStateAverager
    ) -> None:
        self._run, self._averager, self._state = run, averager, state
        self._num_samples = 0
        self._inner = InnerSteps(run, model, state.main_parameters)
        # New parameters are not copied over the model's: they go under what the model has learnt since.
        state.apply_parameters = self._rebase

    def add(self, num_samples: int, epoch: int) -> int:
        """See `Gathering`."""
        self._averager.accumulate_grads_(num_samples)
        self._num_samples += num_samples
        if self._averager.local_samples_accumulated >= self._run.inner_batch_size:
            self._make_inner_step(epoch)
        return self._num_samples

    def finish(self, epoch: int) -> None:
        """See `Gathering`: the pseudo-gradient, which weighs by its samples."""
        if self._averager.local_samples_accumulated:
            self._make_inner_step(epoch)
        self._inner.take_pseudo_gradient(self._averager.gathered())
        self._averager.count_as_one(self._num_samples)
        self._num_samples = 0

    def restart(self, *, keep_gradient: bool) -> int:
        """See `Gathering`. Progress away from an older state leads nowhere from a newer one: it is never kept."""
        self._averager.forget_gradients()
        self._num_samples = 0
        self._inner.restart(self._state.optimized_parameters)
        return 0

    def _make_inner_step(self, epoch: int) -> None:
        """Step along the mean gradient of the samples gathered; shorter if they are fewer than an inner batch."""
        num_samples = self._averager.local_samples_accumulated
        self._inner.step(
            self._averager.gathered(),
            epoch=epoch,
            scale=self._averager.scale_of_mean(num_samples),
            share=min(1.0, num_samples / self._run.inner_batch_size),
        )
        self._averager.reset_accumulated_grads_()

    def _rebase(self) -> None:
        self._inner.rebase(self._state.optimized_parameters)
