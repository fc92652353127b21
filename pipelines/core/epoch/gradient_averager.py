"""The averager of gradients: the weights in a round, and what is kept for the next one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from hivemind.averaging.control import StepControl
from hivemind.optim.grad_averager import GradientAverager
from hivemind.p2p import PeerID

from pipelines.core.averaging.averager import RobustAverager


class SwarmGradientAverager(RobustAverager, GradientAverager):
    """Averages gradients; counts what was really averaged."""

    PROTOCOL_NAME = "SwarmGradientAverager"
    epoch_to_average: int | None = None
    """Epoch of the gradients to average next; only peers with the same come into one group; see `PacedKeyManager`."""

    def __init__(
        self,
        *args: Any,
        keeps_own_gradient: bool = False,
        gradient_momentum: float = 0.0,
        other_tensors: Callable[[], Iterable[torch.Tensor]] = tuple,
        **kwargs: Any,
    ) -> None:
        """`keeps_own_gradient`: gathered gradients are kept until reset, even after a round has started with them.

        `gradient_momentum`, beta: peers send exponential means of their gradients, in which those of the epoch k epochs
        ago count beta^k times, and weigh by their samples' exponential mean. The sum of what all send is then the
        exponential mean of the gradients of all samples, whoever computed which. See `momentum_before_averaging`.

        `other_tensors` returns what else there is in `own_tensors`.
        """
        self._other_tensors = other_tensors
        self._keeps_own_gradient, self._momentum = keeps_own_gradient, gradient_momentum
        self._num_earlier_samples = 0.0  # of earlier epochs, as far as they still count; their gradients are kept too
        self._expected_weights: dict[bytes, float] = {}
        super().__init__(*args, **kwargs)

    def own_tensors(self) -> Iterator[torch.Tensor]:
        """Return the gathered gradients and the other tensors."""
        yield from self.gathered()
        yield from self._other_tensors()

    def schedule_step(self, *args: object, **kwargs: object) -> StepControl:
        """See `GradientAverager.schedule_step`."""
        self._tell_process("_average_epoch", self.epoch_to_average)
        return super().schedule_step(*args, **kwargs)

    def step(self, weight: float | None = None, reset_accumulators: bool = True, **kwargs: object) -> object:
        """See `GradientAverager.step`."""
        if weight is None and self._momentum:
            weight = self._mean_num_samples()
        return super().step(weight, reset_accumulators and not self._keeps_own_gradient, **kwargs)

    def gathered(self) -> tuple[torch.Tensor, ...]:
        """Return the sums of the micro-batches' mean gradients, each in units of the first micro-batch's size."""
        return tuple(self._grad_accumulators())

    def count_as_one(self, num_samples: int) -> None:
        """Treat what is `gathered` as one vector, to be averaged as it is, with the weight of this many samples."""
        self.local_times_accumulated, self.local_samples_accumulated = 1, num_samples
        self._anchor_batch_size = num_samples

    def scale_of_mean(self, num_samples: float) -> float:
        """Return the factor that turns what is `gathered` from this many samples into their mean gradient."""
        return self._anchor_batch_size / num_samples

    def _mean_num_samples(self) -> float:
        """Return the exponential mean of an epoch's samples; a peer without new gradients has weight 0."""
        own = self.local_samples_accumulated
        return (1 - self._momentum) * (self._num_earlier_samples + own) if own else 0.0

    @torch.no_grad()
    def load_accumulators_into_averager_(self) -> None:
        """Load the mean gradient of all samples; with momentum, gradients of earlier epochs are part of it.

        hivemind divides by the number of micro-batches, which is the mean only if all of them weigh the same.
        """
        if not self.local_samples_accumulated:
            super().load_accumulators_into_averager_()
            return
        scale = self.scale_of_mean(self._num_earlier_samples + self.local_samples_accumulated)
        with self.get_tensors() as averaged:
            for gradient, gathered in zip(averaged, self.gathered(), strict=True):
                gradient.copy_(gathered).mul_(scale)

    @torch.no_grad()
    def reset_accumulated_grads_(self) -> None:
        """Start another epoch: forget what was gathered, except what momentum keeps of it."""
        if not self._momentum:
            super().reset_accumulated_grads_()
            return
        self._accumulators_used_in_step = False
        self._num_earlier_samples = self._momentum * (self._num_earlier_samples + self.local_samples_accumulated)
        self.local_samples_accumulated = self.local_times_accumulated = 0
        for gathered in self.gathered():
            gathered.mul_(self._momentum)

    @torch.no_grad()
    def forget_gradients(self) -> None:
        """Forget all gradients, also those of earlier epochs: they belong to parameters this peer no longer has."""
        self._num_earlier_samples = 0.0
        super().reset_accumulated_grads_()

    def take_back(self) -> None:
        """Forget a round that did not happen: its gradient is part of what is still being gathered."""
        self._accumulators_used_in_step = False
        self.notify_used_averaged_gradients()

    def expect_samples(self, samples: Mapping[bytes, float]) -> None:
        """Set the most samples that each peer's signed records make plausible, by bytes of its peer id.

        It bounds the weights of the coming rounds. Call it once before every round.
        """
        former, beta = self._expected_weights, self._momentum
        self._expected_weights = {
            peer: beta * former.get(peer, number) + (1 - beta) * number for peer, number in samples.items()
        }
        self._tell_process("_expect_samples", self._expected_weights)

    async def _expect_samples(self, samples: Mapping[bytes, float]) -> None:
        self._recorded_weights = {PeerID(peer_id): number for peer_id, number in samples.items()}
