"""The published model: a DALL-E-like transformer for transformers, with its configuration and processor."""

from transformers import AutoConfig, AutoModel, AutoModelForMultimodalLM, AutoProcessor

from .configuration_dalle_collab import DalleCollabConfig
from .modeling_dalle_collab import (
    DalleCollabForConditionalGeneration,
    DalleCollabModel,
    DalleCollabOutput,
    DalleCollabPreTrainedModel,
)
from .processing_dalle_collab import DalleCollabProcessor

AutoConfig.register("dalle_collab", DalleCollabConfig, exist_ok=True)
AutoModel.register(DalleCollabConfig, DalleCollabForConditionalGeneration, exist_ok=True)
AutoModelForMultimodalLM.register(DalleCollabConfig, DalleCollabForConditionalGeneration, exist_ok=True)
AutoProcessor.register(DalleCollabConfig, DalleCollabProcessor, exist_ok=True)

__all__ = [
    "DalleCollabConfig",
    "DalleCollabForConditionalGeneration",
    "DalleCollabModel",
    "DalleCollabOutput",
    "DalleCollabPreTrainedModel",
    "DalleCollabProcessor",
]
