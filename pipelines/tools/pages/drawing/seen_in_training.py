"""Show what the model may have memorised: the training records nearest to a drawing, with their pictures."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from pipelines.tasks.text_to_image.generation.image_generation import RankingContext, TextToImage
from pipelines.tasks.text_to_image.generation.progressive_drawing import Drawing
from pipelines.tasks.text_to_image.generation.training_index import (
    BUILD_COMMAND,
    PROBE_CAPTION,
    Neighbour,
    TrainingIndex,
    TrainingIndexError,
)
from pipelines.tasks.text_to_image.image_codes.thumbnails import to_picture

NEIGHBOURS_OF_PROMPT = 4
NEIGHBOURS_OF_PICTURE = 3


@dataclass(frozen=True, kw_only=True)
class TrainingPicture:
    """A picture of the training data."""

    image: Image.Image
    """As decoded by the codec."""
    similarity: float
    """Cosine of the CLIP embeddings."""
    caption: str
    """A stranger's text."""


@dataclass(frozen=True, kw_only=True)
class SeenInTraining:
    """The training records nearest to a drawing; nearest first everywhere."""

    by_caption: Sequence[TrainingPicture]
    """Captions nearest to the prompt."""
    by_picture: Sequence[TrainingPicture]
    """Pictures nearest to the prompt, as in the paper's appendix B."""
    beside: Sequence[Sequence[TrainingPicture]]
    """Pictures nearest to each picture of the drawing."""
    typical_similarity: float
    """Median similarity of training pictures to their nearest neighbours."""
    num_records: int
    """Records searched."""
    every: int
    """One in this many records of the dataset was searched."""

    def sentence(self) -> str:
        """Explain the numbers in words."""
        nearest = [row[0].similarity for row in self.beside]
        close = [str(number) for number, value in enumerate(nearest, start=1) if value > self.typical_similarity]
        part = f" (one in {self.every} of the dataset)" if self.every > 1 else ""
        measure = (
            f"Searched {self.num_records:,} training records{part}. A training picture has its own nearest neighbour "
            f"at {self.typical_similarity:.2f} (median; 1.00 means identical)."
        )
        if not close:
            return f"{measure} No result is nearer to the training data than that: nothing here points to a copy."
        if len(close) == 1:
            return f"{measure} Result {close[0]} is nearer to a training picture than that: it may be memorised."
        named = f"{', '.join(close[:-1])} and {close[-1]}"
        return f"{measure} Results {named} are nearer to training pictures than that: they may be memorised."


class OpenedIndex:
    """Loads an index when it is first needed, and retries after a failure; pages start without waiting for it."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._index: TrainingIndex | None = None
        self._lock = threading.Lock()

    def get(self) -> TrainingIndex:
        """Return the index. Raises what `TrainingIndex.load` raises."""
        if self.name is None:
            raise ValueError(f"No index of the training data is set. Make one: {BUILD_COMMAND}")
        with self._lock:
            if self._index is None:
                self._index = TrainingIndex.load(self.name)
            return self._index


def look_up(index: TrainingIndex, bundle: RankingContext | TextToImage, drawing: Drawing) -> SeenInTraining:
    """Find the training records nearest to a drawing; TrainingIndexError if the index does not fit the bundle."""
    _require_fit(index, bundle)
    prompt = drawing.prompt_embedding[None]
    (by_caption,) = index.nearest_captions(prompt, NEIGHBOURS_OF_PROMPT)
    (by_picture,) = index.nearest_pictures(prompt, NEIGHBOURS_OF_PROMPT)
    beside = index.nearest_pictures(drawing.picture_embeddings, NEIGHBOURS_OF_PICTURE)
    return SeenInTraining(
        by_caption=_with_pictures(bundle, by_caption),
        by_picture=_with_pictures(bundle, by_picture),
        beside=[_with_pictures(bundle, row) for row in beside],
        typical_similarity=index.typical_similarity,
        num_records=index.num_records,
        every=index.settings.every,
    )


def _require_fit(index: TrainingIndex, bundle: RankingContext | TextToImage) -> None:
    seen, expected = index.settings.codec_fingerprint, bundle.codec.fingerprint
    if seen != expected:
        raise TrainingIndexError(
            f"The index has image codes of codec {seen}, the run's codec is {expected}. Make an index of the run's "
            f"dataset: dalle-collab run index {bundle.name} --output FOLDER"
        )
    index.require_clip(bundle.reranker.text_embeddings([PROBE_CAPTION])[0].float().cpu().numpy())


def _with_pictures(bundle: RankingContext | TextToImage, neighbours: Sequence[Neighbour]) -> list[TrainingPicture]:
    codes = torch.from_numpy(np.stack([neighbour.image_codes for neighbour in neighbours]))
    images = bundle.codec.decode(codes.to(next(bundle.codec.parameters()).device))
    return [
        TrainingPicture(image=to_picture(image), similarity=neighbour.similarity, caption=neighbour.caption)
        for neighbour, image in zip(neighbours, images, strict=True)
    ]
