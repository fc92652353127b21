"""The captioned pictures that a small CLIP learns from, and their reconstructions from image codes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torchvision.transforms.functional as vision

from hub_tools.printing.stage_progress import OnProgress
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec


@dataclass(frozen=True, kw_only=True)
class CaptionedPictures:
    """Captions and their pictures in memory, all of one size."""

    captions: list[str]
    """One caption per picture."""
    pictures: torch.Tensor
    """`(n, 3, size, size)` uint8."""

    def __len__(self) -> int:
        return len(self.captions)

    def rows(self, indices: Sequence[int]) -> "CaptionedPictures":
        """Return the pairs of these row numbers, in their order."""
        return CaptionedPictures(
            captions=[self.captions[index] for index in indices], pictures=self.pictures[list(indices)]
        )


def collect_pictures(
    pairs: Iterable[tuple[str, np.ndarray]], size: int, *, on_progress: OnProgress | None = None
) -> CaptionedPictures:
    """Read all pairs into memory, each picture cropped to its centre square and resized to `size` pixels.

    `pairs` yields `(caption, picture)` with pictures `(height, width, 3)` uint8. Pairs with an empty caption are
    skipped. A picture of 64 x 64 takes 12 kB of memory.
    """
    captions, pictures = [], []
    for caption, picture in pairs:
        if caption.strip():
            captions.append(caption)
            pictures.append(_square(picture, size))
        if on_progress is not None and len(captions) % 100 == 0:
            on_progress("reading", len(captions), None, "pictures")
    if not pictures:
        raise ValueError("There are no captioned pictures to learn from: expected pairs of a caption and a picture.")
    return CaptionedPictures(captions=captions, pictures=torch.stack(pictures))


def through_the_codec(
    pictures: torch.Tensor,
    codec: VQGANCodec,
    *,
    corruption: float,
    seed: int = 0,
    batch_size: int = 64,
    on_progress: OnProgress | None = None,
) -> torch.Tensor:
    """Return the pictures as the codec draws them after some of their codes were replaced by random ones.

    `pictures: (n, 3, size, size)` uint8 -> the same shape and type. Every picture gets its own share of wrong codes,
    drawn evenly from 0 to `2 * corruption`: generated pictures have such faults, and a CLIP that has never
    seen them would rank by them.
    """
    generator = torch.Generator().manual_seed(seed)
    redrawn = torch.empty_like(pictures)
    for start in range(0, len(pictures), batch_size):
        batch = pictures[start : start + batch_size]
        codes = codec.encode(_resized(batch.float() / 255, codec.config.image_size))
        codes = corrupt_codes(codes, codec.config.codebook_size, corruption, generator)
        drawn = _resized(codec.decode(codes), pictures.shape[-1])
        redrawn[start : start + batch_size] = (drawn * 255).round().to(torch.uint8)
        if on_progress is not None:
            on_progress("redrawing", start + len(batch), len(pictures), "pictures through the codec")
    return redrawn


def corrupt_codes(
    image_codes: torch.Tensor, codebook_size: int, corruption: float, generator: torch.Generator
) -> torch.Tensor:
    """Replace a random share of codes by random codes; the share of each row is even in [0, 2 * corruption].

    `image_codes: (batch, num_codes)` int64 in [0, codebook_size) -> the same shape; the input is unchanged.
    """
    share = torch.rand(len(image_codes), 1, generator=generator) * 2 * corruption
    is_wrong = torch.rand(image_codes.shape, generator=generator) < share
    noise = torch.randint(codebook_size, image_codes.shape, generator=generator)
    return torch.where(is_wrong.to(image_codes.device), noise.to(image_codes.device), image_codes)


def _square(picture: np.ndarray, size: int) -> torch.Tensor:
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(f"Expected a picture (height, width, 3) uint8, got {picture.shape} {picture.dtype}.")
    channels_first = torch.tensor(picture).permute(2, 0, 1)  # (3, height, width)
    return vision.resize(vision.center_crop(channels_first, [min(picture.shape[:2])] * 2), [size, size], antialias=True)


def _resized(images: torch.Tensor, size: int) -> torch.Tensor:
    if images.shape[-1] == size and images.shape[-2] == size:
        return images
    return vision.resize(images, [size, size], antialias=True).clamp(0, 1)
