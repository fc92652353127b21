"""The sum of micro-batches' gradients of a peer that has no averager."""

from collections.abc import Sequence

import torch


class LocalGradientSum:
    """See `GradientSum`. The sums lie on the parameters' device, float32."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = tuple(parameters)
        self._sums = tuple(torch.zeros_like(parameter, dtype=torch.float32) for parameter in self._parameters)
        self._unit = 1
        self.local_samples_accumulated = 0

    @torch.no_grad()
    def accumulate_grads_(self, batch_size: int) -> None:
        """See `GradientSum`."""
        if not self.local_samples_accumulated:
            self._unit = batch_size
        self.local_samples_accumulated += batch_size
        for total, parameter in zip(self._sums, self._parameters, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=batch_size / self._unit)

    def gathered(self) -> Sequence[torch.Tensor]:
        """See `GradientSum`."""
        return self._sums

    def scale_of_mean(self, num_samples: float) -> float:
        """See `GradientSum`."""
        return self._unit / num_samples

    def count_as_one(self, num_samples: int) -> None:
        """See `GradientSum`."""
        self.local_samples_accumulated = self._unit = num_samples

    def take_back(self) -> None:
        """See `GradientSum`: nothing was taken away."""

    @torch.no_grad()
    def reset_accumulated_grads_(self) -> None:
        """See `GradientSum`."""
        self.local_samples_accumulated = 0
        for total in self._sums:
            total.zero_()

    forget_gradients = reset_accumulated_grads_
