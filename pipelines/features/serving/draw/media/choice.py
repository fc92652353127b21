"""Which medium a model is of."""

from transformers import PretrainedConfig

from modeling_dalle_collab.configuration_dalle_collab import DalleCollabConfig
from pipelines.features.serving.draw.media.medium import Medium
from pipelines.features.serving.draw.media.pictures import PICTURES
from pipelines.features.serving.draw.media.texts import TEXTS

MEDIA: dict[str, Medium] = {"text-to-image": PICTURES, "text-generation": TEXTS}
"""By the task of a run."""


def medium_of(config: PretrainedConfig) -> Medium:
    """Return the medium of a model of this configuration."""
    return PICTURES if isinstance(config, DalleCollabConfig) else TEXTS


def medium_of_task(repository: str, task: str) -> Medium:
    """Return the medium of a run; ValueError if its model draws nothing."""
    if task not in MEDIA:
        raise ValueError(f"{repository} is a run of {task}: servers draw pictures or write texts ({', '.join(MEDIA)}).")
    return MEDIA[task]
