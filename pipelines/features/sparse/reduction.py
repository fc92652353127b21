"""Sparse synchronisation: the `Reduction` of runs whose peers send the largest values of their progress alone."""

from typing import Any

import torch

from pipelines.core.epoch.reduction import Reduction
from pipelines.core.state.training_state import TrainingState
from pipelines.features.sparse.averager import SparseAverager
from pipelines.features.sparse.local_steps import SparseLocalSteps


class SparseReduction(Reduction):
    """The largest values alone are sent, to all."""

    searches_early = False  # members tell each other in the group what they contribute
    silences_of_a_round = 4  # an attempt lasts as long as a silent sender is waited for, and there may be two

    def averager(self, *, may_help: bool = False, **options: Any) -> SparseAverager:
        """See `Reduction`. A peer that listens always helps: it passes contributions on."""
        return SparseAverager(values_per_chunk=self._run.sparse_values_per_chunk, **options)

    def gathering(self, model: torch.nn.Module, averager: SparseAverager, state: TrainingState) -> SparseLocalSteps:
        """See `Reduction`."""
        return SparseLocalSteps(self._run, model, averager, state)
