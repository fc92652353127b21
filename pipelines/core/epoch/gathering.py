"""What a peer does with gradients until the swarm has enough samples: it sums them, and hands the mean to a round."""

from collections.abc import Iterable, Sequence

import torch


class GradientSum:
    """The sum of the micro-batches' mean gradients, weighted by their samples, float32 on the parameters' device.

    With momentum, beta, it is an exponential mean, in which gradients of the epoch k epochs ago count beta^k times, and
    its weight the exponential mean of an epoch's samples. The sum of what all peers send is then the exponential mean
    of the gradients of all samples, whoever computed which. See `momentum_before_averaging`.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], momentum: float = 0.0) -> None:
        self._parameters, self._momentum = tuple(parameters), momentum
        self._sums = tuple(torch.zeros_like(parameter, dtype=torch.float32) for parameter in self._parameters)
        self._num_earlier_samples = 0.0  # of earlier epochs, as far as they still count; their gradients are kept too
        self._unit = 0  # samples of the first micro-batch; 0 before it
        self.num_samples = 0
        """Samples of this epoch."""

    @torch.no_grad()
    def add(self, num_samples: int) -> None:
        """Add the mean gradient of so many samples, in the parameters' `.grad`."""
        self._unit = self._unit or num_samples
        self.num_samples += num_samples
        for total, parameter in zip(self._sums, self._parameters, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=num_samples / self._unit)

    def gathered(self) -> tuple[torch.Tensor, ...]:
        """Return the sums of the mean gradients, each in units of the first micro-batch's size."""
        return self._sums

    def scale_of_mean(self, num_samples: float) -> float:
        """Return the factor that turns what is `gathered` from this many samples into their mean gradient."""
        return self._unit / num_samples

    @property
    def weight(self) -> float:
        """By how many samples the mean counts in a round; a peer without new gradients has weight 0."""
        if not (self._momentum and self.num_samples):
            return self.num_samples
        return (1 - self._momentum) * (self._num_earlier_samples + self.num_samples)

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor]) -> None:
        """Write the mean gradient of all samples into the tensors; zeros without new gradients."""
        if not self.num_samples:
            for tensor in tensors:
                tensor.zero_()
            return
        scale = self.scale_of_mean(self._num_earlier_samples + self.num_samples)
        for tensor, total in zip(tensors, self._sums, strict=True):
            tensor.copy_(total).mul_(scale)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Start another epoch: forget what was gathered, except what momentum keeps of it."""
        if not self._momentum:
            self.reset()
            return
        self._num_earlier_samples = self._momentum * (self._num_earlier_samples + self.num_samples)
        self.num_samples = 0
        for total in self._sums:
            total.mul_(self._momentum)

    @torch.no_grad()
    def reset(self) -> None:
        """Forget all gradients, also those of earlier epochs."""
        self.num_samples, self._num_earlier_samples, self._unit = 0, 0.0, 0
        for total in self._sums:
            total.zero_()


class SummedGradients:
    """What a training peer does between two rounds of averaging: it sums every gradient, and the mean is averaged.

    A feature may gather otherwise; it derives from this.
    """

    def __init__(self, total: GradientSum) -> None:
        self._sum = total

    @property
    def num_samples(self) -> int:
        """Samples of this epoch so far."""
        return self._sum.num_samples

    def add(self, num_samples: int, epoch: int) -> int:
        """Count the samples' mean gradient, in the parameters' `.grad`; return the epoch's samples so far."""
        self._sum.add(num_samples)
        return self.num_samples

    def finish(self, epoch: int) -> None:
        """Make what was gathered ready for a round, and begin to gather for the next one."""

    def load(self, tensors: Sequence[torch.Tensor]) -> float:
        """Write what to average into an averager's tensors, float32 on the CPU; return its weight, in samples."""
        self._sum.load(tensors)
        return self._sum.weight

    def end_epoch(self) -> None:
        """Go on after a step: what was loaded counts no more."""
        self._sum.end_epoch()

    def take_back(self) -> int:
        """Gather on what `finish` has made ready: nobody has averaged it, the state is the same; return its samples."""
        return self.num_samples

    def lose_round(self) -> None:
        """Note that nobody has averaged what was loaded, while more has been gathered: it is lost."""

    def restart(self, *, keep_gradient: bool) -> int:
        """Start over, after a change of the state from outside; return the samples that still count."""
        if keep_gradient:
            return self.take_back()
        self._sum.reset()
        return 0

    def own_tensors(self) -> Iterable[torch.Tensor]:
        """Return what it keeps on the model's device."""
        return self._sum.gathered()
