"""The averager of runs with sparse synchronisation: what a peer contributes to a round, and what became of it."""

from collections.abc import Iterable
from typing import Any

import torch
from hivemind.averaging.control import StepControl

from pipelines.training.averaging.contributions.contribution_averager import ContributionAverager
from pipelines.training.sparse.codec import SparseCodec
from pipelines.training.sparse.mean import share_to_send_again
from pipelines.training.swarm_optimizer.gradient_averager import SwarmGradientAverager


class SparseGradientAverager(ContributionAverager, SwarmGradientAverager):
    """Averages sparse progress; the mean is where averaged gradients are."""

    PROTOCOL_NAME = "SparseGradientAverager"

    def __init__(self, *, parameters: Iterable[torch.nn.Parameter], values_per_chunk: int, **kwargs: Any) -> None:
        """`values_per_chunk`: how many values of each chunk are sent."""
        parameters = tuple(parameters)
        codec = SparseCodec([tuple(parameter.shape) for parameter in parameters], k=values_per_chunk)
        self._contribution: bytes | None = None
        self._round: StepControl | None = None
        super().__init__(parameters=parameters, codec=codec, **kwargs)

    def contribute(self, content: bytes | None) -> None:
        """Make this the contribution to the next round; None: this peer has nothing to contribute."""
        self._contribution, self._round = content, None

    @property
    def may_have_counted(self) -> bool:
        """Whether the newest contribution may be in a mean: this peer's own without the others, or theirs."""
        return self._round is None or (self._round.began_allreduce and self.was_taken)

    @property
    def share_to_send_again(self) -> float:
        """Which share of the newest contribution counts again, in the next one: all of it, or what the mean has cut."""
        if not self.may_have_counted:
            return 1.0
        return 0.0 if self._round is None else share_to_send_again(self.own_scale)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """See `GradientAverager.step`. The group hears of the contribution: it is looked for only now."""
        assert self.epoch_to_average is not None, "a contribution is to the round of an epoch"
        self.offer(self._contribution, self.epoch_to_average)
        self._round = super().step(*args, **kwargs)
        return self._round
