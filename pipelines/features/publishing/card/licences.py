"""The licences of what a model is made from, as their repositories on the Hub state them."""

import logging
from collections.abc import Mapping

import httpx2
from huggingface_hub import HfApi

from pipelines.core.run.training_run import TrainingRun
from pipelines.features.publishing.publishable_task import Source

logger = logging.getLogger(__name__)

LONGEST_LICENCE = 64
NOT_STATED, NOT_KNOWN = "not stated", "could not be read"


def sources_of(run: TrainingRun, companions: Mapping[str, tuple[str, str | None]]) -> list[Source]:
    """Return the dataset and the companions of a run with their licences; `NOT_KNOWN` while the Hub does not answer."""
    places = {"dataset": (run.dataset_repository, run.dataset_revision)} | dict(companions)
    return [
        Source(role=role, repository=repository, revision=revision or "", licence=_licence(role, repository, revision))
        for role, (repository, revision) in places.items()
    ]


def _licence(role: str, repository: str, revision: str | None) -> str:
    try:
        kind = "dataset" if role == "dataset" else "model"
        card = HfApi().repo_info(repository, revision=revision or None, repo_type=kind).card_data
    except (OSError, ValueError, httpx2.HTTPError) as error:
        logger.warning("The licence of %s could not be read: %s", repository, error)
        return NOT_KNOWN
    named = None if card is None else card.get("license")
    names = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    return ", ".join(names)[:LONGEST_LICENCE] or NOT_STATED
