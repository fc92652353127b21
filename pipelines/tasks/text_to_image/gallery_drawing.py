"""The progress reel's rows of pictures."""

from collections.abc import Sequence
from functools import cached_property

import torch
from PIL import Image

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.features.publishing.metrics.sample_gallery import REEL_SEED
from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec
from pipelines.tasks.text_to_image.image_codes.thumbnails import draw_thumbnails, to_picture
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

PICTURES_PER_PROMPT = 4
PICTURE_SIDE = 96
"""Pixels of the longer side of a picture."""


class GalleryDrawer:
    """Draws prompts, one row of pictures for each, with the run's codec and a fixed seed."""

    def __init__(self, processor: DalleCollabProcessor) -> None:
        self._processor = processor

    @cached_property
    def _codec(self) -> VQGANCodec:
        revision = self._processor.image_codec_revision
        return open_codec(self._processor.image_codec_repository, revision=revision)

    def draw(self, model: torch.nn.Module, prompts: Sequence[str]) -> Image.Image:
        """Return the pictures of all prompts as one."""
        input_ids = self._processor(text=list(prompts))["input_ids"]
        codes = model.generate_image_codes(input_ids, num_candidates=PICTURES_PER_PROMPT, seed=REEL_SEED)
        rows = [[to_picture(image) for image in self._codec.decode(row)] for row in codes]
        return draw_thumbnails(rows, PICTURE_SIDE)
