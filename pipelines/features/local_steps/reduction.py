"""The `Reduction` of runs whose peers average their progress, densely."""

from typing import Any

import torch

from pipelines.core.epoch.reduction import Reduction
from pipelines.core.state.training_state import TrainingState
from pipelines.features.local_steps.local_steps import LocalSteps


class LocalStepReduction(Reduction):
    """The peers' progress is averaged as gradients are."""

    def gathering(self, model: torch.nn.Module, averager: Any, state: TrainingState) -> LocalSteps:
        """See `Reduction`."""
        return LocalSteps(self._run, model, state)
