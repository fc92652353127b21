"""What a peer does with gradients until the swarm has enough samples: it sums them."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch


class GradientSum(Protocol):
    """Sums the micro-batches' gradients, from the parameters' `.grad`; a `SwarmGradientAverager` is one."""

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


class SummedGradients:
    """What a training peer does between two rounds of averaging: it sums every gradient, and the sum is averaged.

    A feature may gather otherwise; it derives from this.
    """

    def __init__(self, averager: GradientSum) -> None:
        self._averager = averager

    def add(self, num_samples: int, epoch: int) -> int:
        """Count the samples' mean gradient, in the parameters' `.grad`; return the epoch's samples so far."""
        self._averager.accumulate_grads_(num_samples)
        return self._averager.local_samples_accumulated

    def finish(self, epoch: int) -> None:
        """Load what to average now, and its weight, into the averager, which already has everything."""

    def take_back(self) -> int:
        """Gather on what `finish` has loaded: nobody has averaged it, the state is the same; return its samples."""
        self._averager.take_back()
        return self._averager.local_samples_accumulated

    def lose_round(self) -> None:
        """Note that nobody has averaged what `finish` has loaded, while more has been gathered: it is lost."""

    def restart(self, *, keep_gradient: bool) -> int:
        """Start over, after a change of the state from outside; return the samples that still count."""
        if keep_gradient:
            return self.take_back()
        self._averager.forget_gradients()
        return self._averager.local_samples_accumulated

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """Return what it keeps on the model's device, besides what the averager has gathered: nothing."""
        return ()
