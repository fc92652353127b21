"""How a run's peers average what they have gathered: a `Reduction`, by the name that the settings give it."""

import importlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from pipelines.core.averaging.checks import Checks
from pipelines.core.averaging.division import Division
from pipelines.core.epoch.gradient_averager import SwarmGradientAverager
from pipelines.core.epoch.local_steps import Gathering, LocalSteps, SummedGradients
from pipelines.core.run.training_run import TrainingRun
from pipelines.core.state.training_state import TrainingState

logger = logging.getLogger(__name__)


class Reduction:
    """One way to average: what peers gather between two rounds, and what exchanges it; a feature may have another.

    The gathering loads vectors and their weight into the averager, which has the average in its tensors after a round.
    This one is dense: all values are averaged, each part of the vector by one of the group's reducers.
    """

    searches_early = True
    """Whether a group is looked for before all is gathered."""

    silences_of_a_round = 2
    """For how many times the longest silence of a sender a round may last at least."""

    def __init__(
        self, run: TrainingRun, averager_type: Callable[..., SwarmGradientAverager] = SwarmGradientAverager
    ) -> None:
        self._run, self._averager_type = run, averager_type

    def averager(self, *, may_help: bool = False, **options: object) -> SwarmGradientAverager:
        """Return the averager of a peer; the options are those of `SwarmGradientAverager`.

        Links are measured, and averages checked, by the features that are installed. `may_help`: see `Division`.
        """
        division = partial(_feature_or(Division, MEASURED_DIVISION), may_help=may_help)
        features = dict(new_division=division, checks_type=_feature_or(Checks, ROUND_CHECKS))
        return self._averager_type(**(features | options))

    def gathering(self, model: torch.nn.Module, averager: Any, state: TrainingState) -> Gathering:
        """Return what a peer that trains does between two rounds of this averager."""
        if self._run.local_steps == 1:
            return SummedGradients(averager)
        return LocalSteps(self._run, model, averager, state)


REDUCTIONS: Mapping[str, Callable[[TrainingRun], Reduction] | str] = {
    "dense": Reduction,
    "sparse": "pipelines.features.sparse.reduction:SparseReduction",
}
"""By `synchronisation` of the settings; a feature's is imported when a run asks for it, from `module:name`."""


FEATURES = "pipelines.features"
MEASURED_DIVISION = "pipelines.features.bandwidth.measured_division:MeasuredDivision"
ROUND_CHECKS = "pipelines.features.audits.checks:RoundChecks"


def reduction_of(run: TrainingRun) -> Reduction:
    """Return how the run's peers average.

    Raises:
        ValueError: it takes a feature that is not installed.
    """
    found = REDUCTIONS[run.synchronisation]
    try:
        return (_feature(found) if isinstance(found, str) else found)(run)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"The run's synchronisation is {run.synchronisation}, for which this package lacks {error.name}. "
            "Cure: pip install -U dalle-collab"
        ) from error


def _feature_or(default: Any, place: str) -> Any:
    try:
        return _feature(place)
    except ModuleNotFoundError as error:
        if error.name not in (FEATURES, ".".join(place.split(".")[:3])):
            raise  # the feature is there, and lacks something
        logger.warning(
            "This package lacks %s; %s takes its place. All peers of a run must have it, or none.",
            error.name,
            default.__name__,
        )
        return default


def _feature(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
