"""The swarm's optimizer for runs with local steps: peers average how far they came instead of every gradient.

hivemind's engine stays as it is: the averaged vector is the pseudo-gradient, and the optimizer that takes it is the
outer one, whose parameters and momentum are the state that newcomers, the auxiliary peer and checkpoints see.
"""

from typing import Any

import hivemind
import torch

from pipelines.training.run.training_run import TrainingRun
from pipelines.training.swarm_optimizer.inner_steps import InnerSteps
from pipelines.training.swarm_optimizer.optimizer import SwarmOptimizer


class LocalStepsOptimizer(SwarmOptimizer):
    """Makes inner steps of `inner_batch_size` samples and synchronises after `samples_per_epoch` of the swarm.

    The model's parameters are this peer's own; those of the swarm are in the state averager.
    """

    def __init__(self, *, run: TrainingRun, dht: hivemind.DHT, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(run=run, dht=dht, model=model, **options)
        self._num_samples = 0
        self._inner = InnerSteps(run, model, self.state_averager.main_parameters)
        # New parameters are not copied over the model's: they go under what the model has learnt since.
        self.state_averager.apply_parameters = self._rebase

    @property
    def synchronised_parameters(self) -> list[torch.Tensor]:
        """The parameters of the last synchronisation, float32 on the CPU, in the order of the shared state."""
        return [parameter for group in self.state_averager.optimizer.param_groups for parameter in group["params"]]

    def begin_epoch(self, *, keep_gradient: bool = False) -> None:
        """Forget this peer's own progress since the last synchronisation; for any change of the state from outside."""
        super().begin_epoch()  # progress away from an older state leads nowhere from a newer one: it is never kept
        self._num_samples = 0
        self._inner.restart(self.synchronised_parameters)

    def _accumulate(self, batch_size: int, grad_scaler: Any) -> bool:
        self.grad_averager.accumulate_grads_(batch_size)
        self._num_samples += batch_size
        if self.grad_averager.local_samples_accumulated >= self.run.inner_batch_size:
            self._make_inner_step()
        self.tracker.report_local_progress(self.local_epoch, self._num_samples)
        return True

    def _begin_averaging_gradients(self, grad_scaler: Any) -> bool:
        if self.grad_averager.local_samples_accumulated:
            self._make_inner_step()
        self._inner.take_pseudo_gradient(self.grad_averager.gathered())
        # The averager divides by the number of times and weighs by the samples.
        self.grad_averager.local_times_accumulated = 1
        self.grad_averager.local_samples_accumulated, self._num_samples = self._num_samples, 0
        return super()._begin_averaging_gradients(grad_scaler)

    def _make_inner_step(self) -> None:
        """Step along the mean gradient of the samples gathered; shorter if they are fewer than an inner batch."""
        averager = self.grad_averager
        num_samples = averager.local_samples_accumulated
        self._inner.step(
            averager.gathered(),
            epoch=self.local_epoch,
            scale=averager.scale_of_mean(num_samples),
            share=min(1.0, num_samples / self.run.inner_batch_size),
        )
        averager.reset_accumulated_grads_()

    def _rebase(self) -> None:
        self._inner.rebase(self.synchronised_parameters)


def make_optimizer(*, run: TrainingRun, **options: Any) -> SwarmOptimizer:
    """Return the optimizer that the run's settings ask for."""
    kind = SwarmOptimizer if run.local_steps == 1 else LocalStepsOptimizer
    return kind(run=run, **options)
