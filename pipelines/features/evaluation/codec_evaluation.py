"""What a codec preserves of pictures: no model that draws with it can come closer to the originals."""

from collections.abc import Sequence

import torch
import torchvision.transforms.functional as vision

from pipelines.features.evaluation.features import FeatureExtractor
from pipelines.features.evaluation.figures import HIGHER, LOWER, in_chunks
from pipelines.features.evaluation.measurement import PICTURES_AT_ONCE, Measurement
from pipelines.features.evaluation.perceptual import Lpips
from pipelines.features.evaluation.set_distances import frechet_distance
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec


def measure_codec(
    result: Measurement,
    codec: VQGANCodec,
    originals: torch.Tensor,
    extractors: Sequence[FeatureExtractor],
    lpips: Lpips | None = None,
) -> dict[str, torch.Tensor]:
    """Add the codec's figures on `originals: (picture, 3, side, side)` uint8; return their features by extractor."""
    pictures = originals.float() / 255
    if pictures.shape[-1] != codec.config.image_size:
        side = [codec.config.image_size] * 2
        pictures = vision.resize(pictures, side, antialias=True).clamp(0, 1)
    device = next(codec.parameters()).device
    redrawn = in_chunks(
        lambda chunk: codec.decode(codec.encode(chunk.to(device))).clamp(0, 1), pictures, PICTURES_AT_ONCE
    )
    errors = (redrawn - pictures).square().flatten(1).mean(1).clamp(min=1e-10)
    meaning = "Signal to noise, in dB, of originals that went through the codec."
    result.add_items("psnr", "originals", HIGHER, meaning, -10 * errors.log10())
    if lpips is not None:
        look = "How different originals look that went through the codec (LPIPS by AlexNet, 2018); 0 is no difference."
        result.add_items("lpips", "originals", LOWER, look, lpips(redrawn, pictures))
    features = {}
    for extractor in extractors:
        features[extractor.name] = in_chunks(extractor, pictures, PICTURES_AT_ONCE)
        distance = frechet_distance(in_chunks(extractor, redrawn, PICTURES_AT_ONCE), features[extractor.name])
        meaning = "Fréchet distance of originals to themselves through the codec."
        result.add_whole(f"rfid@{extractor.name}", "originals", LOWER, meaning, distance, len(pictures))
    return features
