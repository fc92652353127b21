"""What a feature learns of a peer's gradients and rounds, without the optimizer knowing the feature."""

from collections.abc import Sequence

import torch

from pipelines.core.run.task import NamedBatch


class EpochListener:
    """Called at each step of a gradient's life; does nothing by default (compare transformers' `TrainerCallback`).

    The calls come from the training thread and, with delayed averaging, from that of the round.
    """

    def gradient_counted(
        self, batch: NamedBatch, gradients: Sequence[torch.Tensor | None], num_samples: int, epoch: int
    ) -> None:
        """The gradient of a batch, a mean over its samples, counts in the coming round.

        `gradients`: of the parameters in the optimizer's order, float32; `epoch` is that of the parameters.
        """

    def gradient_dropped(self, batch: NamedBatch) -> None:
        """The gradient of a batch does not count."""

    def round_began(self) -> None:
        """The gradients that have been counted go into a round."""

    def round_averaged(self, epoch: int) -> None:
        """A round has averaged its gradients; `epoch` is that of the state after its step."""

    def round_lost(self) -> None:
        """The gradients of the round are lost; those counted since then are not."""

    def gradients_kept(self) -> None:
        """Nobody has averaged the gradients of the round: they count in the next one."""

    def gradients_lost(self) -> None:
        """All gradients are lost: those counted, and those of a round."""
