"""Feature extractors: which properties of pictures a distance compares. One is named by a short text.

`clip`: the run's CLIP. `inception`: the Inception of FID, with torch-fidelity's weights; `inception:FILE` with local
ones. `transformers:FOLDER_OR_REPOSITORY`: any picture model of transformers, such as facebook/dinov2-base.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
import torchvision.transforms.functional as vision
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from transformers import AutoImageProcessor, AutoModel

from hub_tools.checks import check_loaded
from hub_tools.places import local_folder
from hub_tools.run_files import MODEL_FILES
from pipelines.features.memory_estimate.hub_config import fetch_model
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker

CLIP, INCEPTION, TRANSFORMERS = "clip", "inception", "transformers"
SPECIFICATIONS = f"{CLIP}, {INCEPTION}, {INCEPTION}:FILE or {TRANSFORMERS}:FOLDER_OR_REPOSITORY"
INCEPTION_LAYER = "2048"


class FeatureExtractor(Protocol):
    """Turns pictures into features."""

    name: str

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of `images: (picture, 3, height, width)` float in [0, 1]: (picture, feature) float32."""


@dataclass
class ClipFeatures(FeatureExtractor):
    """Unit embeddings of a CLIP's picture side."""

    clip: ClipReranker
    name: str = CLIP

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return self.clip.image_embeddings(images).float()


@dataclass
class InceptionFeatures(FeatureExtractor):
    """The 2,048 pooled features of the Inception that FID is defined with."""

    weights: str | None
    device: torch.device
    name: str = INCEPTION
    _model: torch.nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self._model = FeatureExtractorInceptionV3(
            "inception-v3-compat", [INCEPTION_LAYER], feature_extractor_weights_path=self.weights
        ).to(self.device)

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return self._model((images * 255).round().to(self.device, torch.uint8))[0].float()


class TransformersFeatures(FeatureExtractor):
    """The pooled output of a picture model of transformers."""

    def __init__(self, place: str, device: torch.device) -> None:
        found = local_folder(place, expected="a folder or a Hub repository of a picture model") or place
        folder = fetch_model(found, revision=None, patterns=MODEL_FILES)
        self.name = f"{TRANSFORMERS}:{place}"
        # Untrusted configuration must not be able to run untrusted code.
        self._processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
        model, info = AutoModel.from_pretrained(folder, trust_remote_code=False, output_loading_info=True)
        check_loaded(model, info, place)
        self._model = model.to(device).eval()

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        rounded = [vision.to_pil_image(image.cpu()) for image in images.clamp(0, 1)]
        pixels = self._processor(images=rounded, return_tensors="pt")["pixel_values"]
        output = self._model(pixel_values=pixels.to(self._model.device))
        pooled = getattr(output, "pooler_output", None)
        return (output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)).float()


def check_specification(text: str) -> None:
    """Raise ValueError unless a text names a feature extractor."""
    kind, _, place = text.partition(":")
    is_known = kind in (CLIP, INCEPTION, TRANSFORMERS) and (kind != CLIP or not place)
    if not is_known or (kind == TRANSFORMERS and not place):
        raise ValueError(f"{text!r} is no feature extractor. Expected {SPECIFICATIONS}.")


def open_features(text: str, clip: ClipReranker | None, device: torch.device) -> FeatureExtractor:
    """Return the feature extractor that a text names.

    Raises:
        ValueError: the text names none, or there is no CLIP.
        OSError: its weights cannot be read or fetched.
    """
    check_specification(text)
    kind, _, place = text.partition(":")
    if kind == INCEPTION:
        return InceptionFeatures(place or None, device)
    if kind == TRANSFORMERS:
        return TransformersFeatures(place, device)
    if clip is None:
        raise ValueError("The run's CLIP could not be loaded.")
    return ClipFeatures(clip)
