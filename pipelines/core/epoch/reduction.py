"""How a run's peers average what they have gathered: a `Reduction`, by the name that the settings give it."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from pipelines.core.averaging.averager import SwarmAverager
from pipelines.core.averaging.checks import Checks
from pipelines.core.averaging.division import Division
from pipelines.core.epoch.gathering import GradientSum, SummedGradients
from pipelines.core.named_features import MissingFeatureError, named_feature
from pipelines.core.optimizers.choice import gradient_momentum
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState

logger = logging.getLogger(__name__)

Part = TypeVar("Part")


class Reduction:
    """One way to average: what peers gather between two rounds, and what exchanges it; a feature may have another.

    The gathering loads vectors and their weight into the averager, which has the average in its tensors after a round.
    This one is dense: all values are averaged, each part of the vector by one of the group's reducers.
    """

    searches_early = True
    """Whether a group is looked for before all is gathered."""

    silences_of_a_round = 2
    """For how many times the longest silence of a sender a round may last at least."""

    def __init__(self, run: TrainingRun, averager_type: Callable[..., SwarmAverager] = SwarmAverager) -> None:
        self._run, self._averager_type = run, averager_type

    def averager(self, *, may_help: bool = False, **options: object) -> SwarmAverager:
        """Return the averager of a peer; the options are those of `SwarmAverager`.

        Links are measured, and averages checked, by the features that are installed. `may_help`: see `Division`.
        """
        division = partial(_feature_or(Division, MEASURED_DIVISION), may_help=may_help)
        features = dict(new_division=division, checks_type=_feature_or(Checks, ROUND_CHECKS))
        return self._averager_type(**(features | options))

    def gathering(self, model: torch.nn.Module, averager: Any, state: TrainingState) -> SummedGradients:
        """Return what a peer that trains does between two rounds of this averager."""
        return SummedGradients(GradientSum(state.main_parameters, gradient_momentum(self._run)))


REDUCTIONS: Mapping[str, type[Reduction] | str] = {
    "dense": Reduction,
    "local steps": "pipelines.features.local_steps.reduction:LocalStepReduction",
    "sparse": "pipelines.features.sparse.reduction:SparseReduction",
}
"""By what the settings ask for; a feature's is imported when a run asks for it, from `module:name`."""

MEASURED_DIVISION = "pipelines.features.bandwidth.measured_division:MeasuredDivision"
ROUND_CHECKS = "pipelines.features.audits.checks:RoundChecks"


def reduction_of(run: TrainingRun, averager_type: Callable[..., SwarmAverager] | None = None) -> Reduction:
    """Return how the run's peers average; with an averager of another type: densely, by that.

    Raises:
        MissingFeatureError: it takes a feature that is not installed.
    """
    dense = "dense" if run.local_steps == 1 else "local steps"
    found = REDUCTIONS[dense if averager_type is not None or run.synchronisation == "dense" else run.synchronisation]
    kind = named_feature(found) if isinstance(found, str) else found
    return kind(run, averager_type or SwarmAverager)


def _feature_or(default: type[Part], place: str) -> type[Part]:
    try:
        return named_feature(place)
    except MissingFeatureError as error:
        logger.warning("%s %s takes its place. All peers of a run must have it, or none.", error, default.__name__)
        return default
