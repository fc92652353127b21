"""The rows of pictures of the progress reel."""

from collections.abc import Callable, Sequence

import torch
from PIL import Image

from modeling_dalle_collab import DalleCollabProcessor
from pipelines.image_codes.thumbnails import draw_thumbnails, to_picture
from pipelines.image_codes.vqgan_codec import VQGANCodec
from pipelines.training.metrics.reel import REEL_SEED

PICTURES_PER_PROMPT = 4
PICTURE_SIDE = 96
"""Pixels of the longer side of a picture."""


def reel_drawer(processor: DalleCollabProcessor) -> Callable[[torch.nn.Module, Sequence[str]], Image.Image]:
    """Return a function that draws prompts, one row of pictures for each, with the run's codec and a fixed seed."""
    codec: VQGANCodec | None = None

    def draw(model: torch.nn.Module, prompts: Sequence[str]) -> Image.Image:
        nonlocal codec
        if codec is None:
            revision = processor.image_codec_revision
            codec = VQGANCodec.from_pretrained(processor.image_codec_repository, revision=revision)
        input_ids = processor(text=list(prompts))["input_ids"]
        codes = model.generate_image_codes(input_ids, num_candidates=PICTURES_PER_PROMPT, seed=REEL_SEED)
        rows = [[to_picture(image) for image in codec.decode(row)] for row in codes]
        return draw_thumbnails(rows, PICTURE_SIDE)

    return draw
