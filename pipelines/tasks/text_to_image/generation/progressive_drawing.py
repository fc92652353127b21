"""Draw pictures for one prompt interactively: previews on the way, ranked pictures at the end.

Axis names: `candidate`, `number` (codes so far), `image` (the codes of one picture), `embedding`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions, require_prompts
from pipelines.tasks.text_to_image.generation.image_generation import RankingContext, TextToImage
from pipelines.tasks.text_to_image.generation.text_to_image import RankedImage, rank_candidates
from pipelines.tasks.text_to_image.image_codes.thumbnails import to_picture
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec

NUM_PREVIEWED = 4
PREVIEWS_PER_PICTURE = 8
NOT_DRAWN_YET = 0.5
"""Grey of the part of a preview that has no codes yet."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Progress of a drawing."""

    pictures: Sequence[Image.Image] | None
    """The first candidates, grey where nothing is drawn yet; None if unchanged."""
    num_done: int
    """Codes drawn, of all candidates."""
    num_total: int
    """Codes to draw."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A finished drawing."""

    prompt: str
    """What the pictures should show."""
    pictures: Sequence[RankedImage]
    """Those that CLIP ranks first, best first."""
    num_tokens_cut: int
    """Tokens at the prompt's end that the model did not read."""
    share_drawn: float
    """Part of each picture that was drawn rather than given."""
    seconds: float
    """Time of drawing and ranking, without the viewer's."""
    prompt_embedding: np.ndarray = field(repr=False)
    """`(embedding,)` float32 of length 1, by the CLIP that ranked."""
    picture_embeddings: np.ndarray = field(repr=False)
    """`(candidate, embedding)` float32 of length 1, in the order of `pictures`."""
    drawn_by: Mapping[int, str] = field(default_factory=dict)
    """Who has drawn each candidate, by its number: strangers' text; empty if it was this machine."""
    remarks: Sequence[str] = ()
    """Sentences about that."""


def draw_progressively(
    bundle: TextToImage, prompt: str, options: GenerationOptions, *, image_prompt: torch.Tensor | None = None
) -> Iterator[Preview | Drawing]:
    """Yield previews and then the drawing, with the pictures of `generate_images_for_prompts` with the same options.

    `image_prompt: (given,)` are the codes that every picture starts with; see `encode_upper_part`. Stopping the
    iteration stops the computation. Raises ValueError for an empty prompt.
    """
    require_prompts([prompt])
    started, watched = time.monotonic(), 0.0
    batches = []
    for preview in _draw_batches(bundle, prompt, options, image_prompt, batches):
        before = time.monotonic()
        yield preview
        watched += time.monotonic() - before
    num_given = 0 if image_prompt is None else len(image_prompt)
    seconds = time.monotonic() - started - watched
    yield finished_drawing(bundle, prompt, torch.cat(batches), options, num_given=num_given, seconds=seconds)


def finished_drawing(
    bundle: RankingContext | TextToImage,
    prompt: str,
    image_codes: torch.Tensor,
    options: GenerationOptions,
    *,
    num_given: int,
    seconds: float,
) -> Drawing:
    """Return what came of drawing `image_codes: (candidate, image)` for `seconds`; the first `num_given` were given."""
    started, device = time.monotonic(), next(bundle.codec.parameters()).device
    ranked = rank_candidates(bundle, prompt, image_codes.to(device), options)
    pictures = bundle.codec.decode(torch.stack([picture.image_codes for picture in ranked]).to(device))
    return Drawing(
        prompt=prompt,
        pictures=ranked,
        share_drawn=1 - num_given / image_codes.shape[1],
        num_tokens_cut=_num_tokens_cut(bundle, prompt),
        prompt_embedding=bundle.reranker.text_embeddings([prompt])[0].float().cpu().numpy(),
        picture_embeddings=bundle.reranker.image_embeddings(pictures).float().cpu().numpy(),
        seconds=seconds + time.monotonic() - started,
    )


def unfinished_pictures(codec: VQGANCodec, codes: Sequence[torch.Tensor]) -> list[Image.Image]:
    """Decode what is there of some pictures, (number,) int64 each, the rest in grey; only complete rows count."""
    sizes = codec.config
    padded = [torch.nn.functional.pad(own, (0, sizes.num_codes - len(own))) for own in codes]
    images = codec.decode(torch.stack(padded).to(next(codec.parameters()).device))  # (candidate, 3, height, width)
    for image, own in zip(images, codes, strict=True):
        image[:, len(own) // sizes.grid_size * (sizes.image_size // sizes.grid_size) :] = NOT_DRAWN_YET
    return [to_picture(image) for image in images]


def _draw_batches(
    bundle: TextToImage,
    prompt: str,
    options: GenerationOptions,
    image_prompt: torch.Tensor | None,
    batches: list[torch.Tensor],
) -> Iterator[Preview]:
    """Yield previews and put the codes `(candidate, image)` of each batch into `batches`."""
    num_given = 0 if image_prompt is None else len(image_prompt)
    num_new = bundle.model.config.num_image_codes - num_given
    input_ids = bundle.processor(text=[prompt])["input_ids"].to(bundle.model.device)
    for first in range(0, options.num_candidates, options.batch_size):
        batch_size = min(options.batch_size, options.num_candidates - first)
        stream = bundle.model.stream_image_codes(
            input_ids,
            every=max(1, num_new // PREVIEWS_PER_PICTURE),
            num_candidates=batch_size,
            first_candidate=first,
            seed=options.seed,
            image_prompt=None if image_prompt is None else image_prompt[None],
            **vars(options.sampling),
        )
        for codes in stream:  # (1, candidate, number)
            yield Preview(
                pictures=unfinished_pictures(bundle.codec, list(codes[0, :NUM_PREVIEWED])) if first == 0 else None,
                num_done=first * num_new + batch_size * (codes.shape[2] - num_given),
                num_total=options.num_candidates * num_new,
            )
        batches.append(codes[0].clone())


def _num_tokens_cut(bundle: RankingContext | TextToImage, prompt: str) -> int:
    num_tokens = len(bundle.processor.tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"])
    return max(0, num_tokens - bundle.processor.text_sequence_length)
