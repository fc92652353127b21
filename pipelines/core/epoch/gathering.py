"""What a peer does with gradients until the swarm has enough samples: sum them, or make local steps.

With local steps peers average their progress instead of every gradient: the averaged vector is the pseudo-gradient of
the outer optimizer, whose parameters and momentum are the state that newcomers, the auxiliary peer and checkpoints see.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from pipelines.core.epoch.inner_steps import InnerSteps
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState


class GradientSum(Protocol):
    """Sums the micro-batches' gradients, from the parameters' `.grad`; an averager of hivemind is one."""

    local_samples_accumulated: int

    def accumulate_grads_(self, batch_size: int) -> None:
        """Add the mean gradient of so many samples."""

    def gathered(self) -> Sequence[torch.Tensor]:
        """Return the sums of the mean gradients, each in units of the first micro-batch's size."""

    def scale_of_mean(self, num_samples: float) -> float:
        """Return the factor that turns what is `gathered` from this many samples into their mean gradient."""

    def count_as_one(self, num_samples: int) -> None:
        """Treat what is `gathered` as one vector, with the weight of this many samples."""

    def take_back(self) -> None:
        """Gather on: the round with what was gathered did not happen."""

    def reset_accumulated_grads_(self) -> None:
        """Start another sum."""

    def forget_gradients(self) -> None:
        """Forget all gradients: they belong to parameters that this peer no longer has."""


class Gathering(Protocol):
    """What a training peer does between two rounds of averaging."""

    def add(self, num_samples: int, epoch: int) -> int:
        """Count the samples' mean gradient, in the parameters' `.grad`; return the epoch's samples so far."""

    def finish(self, epoch: int) -> None:
        """Load what to average now, and its weight, into the gradient averager."""

    def take_back(self) -> int:
        """Gather on what `finish` has loaded: nobody has averaged it, the state is the same; return its samples."""

    def lose_round(self) -> None:
        """Note that nobody has averaged what `finish` has loaded, while more has been gathered in its place."""

    def restart(self, *, keep_gradient: bool) -> int:
        """Start over, after a change of the state from outside; return the samples that still count."""

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """Return what it keeps on the model's device, besides what the averager has gathered."""


class SummedGradients:
    """Every gradient is summed, and the sum is averaged."""

    def __init__(self, averager: GradientSum) -> None:
        self._averager = averager

    def add(self, num_samples: int, epoch: int) -> int:
        """See `Gathering`."""
        self._averager.accumulate_grads_(num_samples)
        return self._averager.local_samples_accumulated

    def finish(self, epoch: int) -> None:
        """See `Gathering`: the averager already has everything."""

    def take_back(self) -> int:
        """See `Gathering`."""
        self._averager.take_back()
        return self._averager.local_samples_accumulated

    def lose_round(self) -> None:
        """See `Gathering`: it is lost."""

    def restart(self, *, keep_gradient: bool) -> int:
        """See `Gathering`."""
        if keep_gradient:
            return self.take_back()
        self._averager.forget_gradients()
        return self._averager.local_samples_accumulated

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """See `Gathering`: nothing."""
        return ()


class LocalSteps:
    """Inner steps of `inner_batch_size` samples; the progress since the last synchronisation is averaged.

    The model's parameters are this peer's own; those of the swarm are in the training state.
    """

    def __init__(self, run: TrainingRun, model: torch.nn.Module, averager: GradientSum, state: TrainingState) -> None:
        self._run, self._averager, self._state = run, averager, state
        self._num_samples = 0
        self._inner = InnerSteps(run, model, state.main_parameters)
        # New parameters do not overwrite the model's: the model's progress since then is applied on top of them.
        state.apply_parameters = self._rebase

    def add(self, num_samples: int, epoch: int) -> int:
        """See `Gathering`."""
        self._averager.accumulate_grads_(num_samples)
        self._num_samples += num_samples
        if self._averager.local_samples_accumulated >= self._run.inner_batch_size:
            self._make_inner_step(epoch)
        return self._num_samples

    def finish(self, epoch: int) -> None:
        """See `Gathering`: the pseudo-gradient, weighted by its samples."""
        if self._averager.local_samples_accumulated:
            self._make_inner_step(epoch)
        self._inner.take_pseudo_gradient(self._averager.gathered())
        self._averager.count_as_one(self._num_samples)
        self._num_samples = 0

    def take_back(self) -> int:
        """See `Gathering`."""
        self._num_samples += self._averager.local_samples_accumulated
        self._averager.take_back()
        self._take_progress_back()
        self._averager.reset_accumulated_grads_()
        return self._num_samples

    def lose_round(self) -> None:
        """See `Gathering`: it is lost."""

    def restart(self, *, keep_gradient: bool) -> int:
        """See `Gathering`. Progress from an older state is useless for a newer one: it is never kept."""
        self._averager.forget_gradients()
        self._num_samples = 0
        self._inner.restart(self._state.optimized_parameters)
        return 0

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """See `Gathering`: the inner optimizer's statistics."""
        return [tensor for state in self._inner.optimizer.state.values() for tensor in state.values()]

    def _make_inner_step(self, epoch: int) -> None:
        """Step along the gathered samples' mean gradient; a smaller step if they are fewer than an inner batch."""
        num_samples = self._averager.local_samples_accumulated
        self._inner.step(
            self._averager.gathered(),
            epoch=epoch,
            scale=self._averager.scale_of_mean(num_samples),
            share=min(1.0, num_samples / self._run.inner_batch_size),
        )
        self._averager.reset_accumulated_grads_()

    def _take_progress_back(self) -> None:
        self._inner.take_back(self._averager.gathered())

    def _rebase(self) -> None:
        self._inner.rebase(self._state.optimized_parameters)
