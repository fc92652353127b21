"""Which modality a model is of."""

from transformers import PretrainedConfig

from modeling_dalle_collab.configuration_dalle_collab import DalleCollabConfig
from pipelines.features.serving.draw.modalities.modality import Modality
from pipelines.features.serving.draw.modalities.pictures import PICTURES
from pipelines.features.serving.draw.modalities.texts import TEXTS

MEDIA: dict[str, Modality] = {"text-to-image": PICTURES, "text-generation": TEXTS}
"""By the task of a run."""


def modality_of(config: PretrainedConfig) -> Modality:
    """Return the modality of a model of this configuration."""
    return PICTURES if isinstance(config, DalleCollabConfig) else TEXTS


def modality_of_task(repository: str, task: str) -> Modality:
    """Return the modality of a run; ValueError if its model draws nothing."""
    if task not in MEDIA:
        raise ValueError(f"{repository} is a run of {task}: servers draw pictures or write texts ({', '.join(MEDIA)}).")
    return MEDIA[task]
