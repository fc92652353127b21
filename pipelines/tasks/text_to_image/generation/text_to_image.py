"""From prompts to ranked pictures: sample image codes, decode them, let CLIP choose.

Axis names: `prompt`, `candidate`, `image` (the codes of one picture).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torchvision.transforms.functional as vision
from PIL import Image, ImageOps

from hub_tools.printing.stage_progress import OnProgress
from pipelines.tasks.text_to_image.clip.clip_reranking import ClipReranker, highest
from pipelines.tasks.text_to_image.generation.drawing_threads import measured_threads
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions, require_prompts
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext, TextToImage
from pipelines.tasks.text_to_image.image_codes.thumbnails import to_picture
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec


@dataclass(frozen=True, kw_only=True)
class RankedImage:
    """One picture that CLIP chose for a prompt."""

    image: Image.Image
    """The picture, RGB."""
    score: float
    """CLIP's score: logit scale times cosine; comparable within one prompt."""
    candidate_index: int
    """Number of the candidate."""
    image_codes: torch.Tensor = field(repr=False)
    """`(image,)` int64, the codes it was decoded from."""


def generate_images_for_prompts(
    bundle: TextToImage,
    prompts: Sequence[str],
    options: GenerationOptions,
    *,
    image_prompt: torch.Tensor | None = None,
    on_progress: OnProgress | None = None,
) -> list[list[RankedImage]]:
    """Draw candidates for each prompt and return the `keep` that CLIP ranks first, best first; one list per prompt.

    Many prompts together are faster than one by one.

    `image_prompt: (given,)` are the codes that every picture starts with; see `encode_upper_part`. A candidate depends
    on the seed, on the prompt and its place in the list, and on its own number, not on batches.
    """
    image_codes = sample_candidates(bundle, prompts, options, image_prompt=image_prompt, on_progress=on_progress)
    return [
        rank_candidates(bundle, prompt, codes, options, on_progress=on_progress, place=(index, len(prompts)))
        for index, (prompt, codes) in enumerate(zip(prompts, image_codes, strict=True))
    ]


def encode_upper_part(codec: VQGANCodec, picture: Image.Image, num_rows: int | None = None) -> torch.Tensor:
    """Return the codes of the first `num_rows` rows, or half of them, of a picture's centre square: (given,) int64.

    Raises ValueError unless 0 < num_rows < the rows of the codec's grid.
    """
    rows = codec.config.grid_size
    num_rows = rows // 2 if num_rows is None else num_rows
    if not 0 < num_rows < rows:
        raise ValueError(f"Cannot keep {num_rows} rows of the picture, expected 1 to {rows - 1}.")
    size = codec.config.image_size
    square = vision.to_tensor(ImageOps.fit(picture.convert("RGB"), (size, size)))
    device = next(codec.parameters()).device
    return codec.encode(square[None].to(device))[0, : num_rows * rows]


def sample_candidates(
    bundle: DrawingContext,
    prompts: Sequence[str],
    options: GenerationOptions,
    *,
    image_prompt: torch.Tensor | None = None,
    on_progress: OnProgress | None = None,
) -> torch.Tensor:
    """Return the image codes of all candidates, `(prompt, candidate, image)` int64. ValueError for an empty prompt."""
    require_prompts(prompts)

    with measured_threads(bundle.model.device) as note:

        def report(done: int, total: int) -> None:
            note(done)
            if on_progress is not None:
                on_progress("sampling", done, total, "image codes")

        return bundle.model.generate_image_codes(
            bundle.processor(text=list(prompts))["input_ids"].to(bundle.model.device),
            num_candidates=options.num_candidates,
            seed=options.seed,
            image_prompt=None if image_prompt is None else image_prompt.expand(len(prompts), -1),
            candidate_batch_size=options.batch_size,
            on_progress=report,
            **vars(options.sampling),
        )


class RanksPictures(Protocol):
    """What turns codes into ranked pictures; no weights of a run are needed for it."""

    @property
    def codec(self) -> VQGANCodec:
        """Turns image codes into pictures."""

    @property
    def reranker(self) -> ClipReranker:
        """Scores pictures against a caption."""


def rank_candidates(
    bundle: RanksPictures,
    prompt: str,
    image_codes: torch.Tensor,
    options: GenerationOptions,
    *,
    on_progress: OnProgress | None = None,
    place: tuple[int, int] = (0, 1),
) -> list[RankedImage]:
    """Decode `image_codes: (candidate, image)` of one prompt and return the best, best first.

    `place` gives the prompt's number and their total, for progress.
    """
    index, num_prompts = place
    pictures = []
    for batch in image_codes.split(options.batch_size):
        pictures.append(bundle.codec.decode(batch))  # (candidate, 3, height, width)
        if on_progress is not None:
            num_decoded = index * len(image_codes) + sum(map(len, pictures))
            on_progress("decoding", num_decoded, num_prompts * len(image_codes), "pictures")
    images = torch.cat(pictures)
    indices, scores = bundle.reranker.best(prompt, images, options.keep)
    if on_progress is not None:
        on_progress("ranking", index + 1, num_prompts, "prompts")
    return _ranked_images(images[indices.to(images.device)], image_codes, indices, scores)


def pictures_by_scores(
    codec: VQGANCodec, image_codes: torch.Tensor, scores: torch.Tensor, keep: int
) -> list[RankedImage]:
    """Decode the best of `image_codes: (candidate, image)` of one prompt, best first.

    `scores: (candidate)` float32 come from where CLIP is; see `pipelines.features.serving.draw.ranking`.
    """
    indices, values = highest(scores, keep)
    images = torch.cat([codec.decode(image_codes[one : one + 1]) for one in indices.tolist()])
    return _ranked_images(images, image_codes, indices, values)


def _ranked_images(
    images: torch.Tensor, image_codes: torch.Tensor, indices: torch.Tensor, scores: torch.Tensor
) -> list[RankedImage]:
    return [
        RankedImage(image=to_picture(image), score=score, candidate_index=one, image_codes=image_codes[one].cpu())
        for image, one, score in zip(images, indices.tolist(), scores.tolist(), strict=True)
    ]
