"""LPIPS (Zhang et al. 2018): how different two pictures look, by AlexNet's features."""

from pathlib import Path

import torch
from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity
from torchvision.models import AlexNet_Weights

WEIGHTS_FILE = Path(AlexNet_Weights.IMAGENET1K_V1.url).name
LEAST_SIDE = 64
"""Of smaller pictures AlexNet leaves nothing."""


class Lpips:
    """LPIPS, with torchvision's AlexNet and the linear layers of the authors."""

    def __init__(self, image_size: int, device: torch.device) -> None:
        """Load the network.

        Raises:
            ValueError: pictures of that many pixels a side are too small.
            OSError: AlexNet's weights, of 233 MB, are not in torch's cache. They are not fetched unasked.
        """
        if image_size < LEAST_SIDE:
            raise ValueError(f"LPIPS needs pictures of at least {LEAST_SIDE} pixels a side; these have {image_size}.")
        weights = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS_FILE
        if not weights.is_file():
            raise FileNotFoundError(
                "AlexNet's weights are not on this machine. Fetch 233 MB with: "
                "python -c \"import torchvision; torchvision.models.alexnet(weights='DEFAULT')\""
            )
        self._metric = LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True).to(device)
        self._device = device

    @torch.inference_mode()
    def __call__(self, pictures: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return the distance of each pair, `(picture)`; both `(picture, 3, side, side)` floats in [0, 1]."""
        pairs = zip(pictures.to(self._device).split(1), others.to(self._device).split(1), strict=True)
        return torch.stack([self._metric(*pair) for pair in pairs]).cpu()
