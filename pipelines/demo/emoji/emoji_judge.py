"""A judge of drawn emoji: it looks up the most similar of all true pictures and reads what that one is called.

It knows nothing of the model and nothing of CLIP, which chose among the model's candidates. The true pictures pass
through the codec first, since the model draws with the codec's codes: a picture of the same codes as the true one is at
distance zero, and what the codec loses does not count.

Axis names: picture, feature.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pipelines.clip.clip_pictures import through_the_codec
from pipelines.data_preparation.encoding import decode_picture
from pipelines.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.data_preparation.sources.finding import find_sources
from pipelines.demo.emoji.emoji_pairs import name_parts, parse_caption
from pipelines.evaluation.figures import wilson_interval
from pipelines.image_codes.vqgan_codec import VQGANCodec

FEATURE_SIDE = 16
QUESTIONS = ("style", "what", "attribute", "concept", "both")


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """All true pictures, trained on and held out, with their captions."""

    captions: tuple[str, ...]
    features: torch.Tensor
    """(picture, feature) float32."""

    def __post_init__(self) -> None:
        if not self.captions or len(self.captions) != len(self.features):
            raise ValueError(f"{len(self.captions)} captions for {len(self.features)} pictures; expected as many.")

    def nearest(self, pictures: torch.Tensor) -> list[list[str]]:
        """Return, for each picture, the captions of the most similar true picture; several if those look the same.

        pictures: (picture, 3, height, width) uint8.
        """
        distances = torch.cdist(picture_features(pictures), self.features)  # (drawn, true)
        rows = distances <= distances.amin(dim=1, keepdim=True) + 1e-4
        return [[self.captions[index] for index in row.nonzero()[:, 0].tolist()] for row in rows]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How often one question about a group of pictures is answered right."""

    right: int
    of: int
    low: float
    """Lower end of Wilson's 95 % interval."""

    high: float
    chance: float
    """The expected share if the judge saw any true picture instead, each as likely as another."""

    @property
    def share(self) -> float:
        """Share of right answers."""
        return self.right / self.of


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The scores of a group of captions, by question: those of QUESTIONS that its captions pose."""

    group: str
    scores: Mapping[str, Score]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(group=self.group, scores={name: asdict(score) for name, score in self.scores.items()})


def open_gallery(folders: Iterable[Path], codec: VQGANCodec) -> tuple[Gallery, dict[str, torch.Tensor]]:
    """Read all tars below the folders; return the judge's gallery, and the pictures as they are by their captions.

    The pictures are (3, side, side) uint8.
    """
    pictures = {}
    for source in find_sources(list(folders)):
        for sample in source.samples():
            decoded = decode_picture(sample.image_bytes, codec.config.image_size, FilterPolicy())
            if isinstance(decoded, DropReason):
                raise ValueError(f"The picture {sample.key} of {source.name} is unreadable: {decoded.value}.")
            pictures[sample.caption] = torch.from_numpy(np.array(decoded[0])).permute(2, 0, 1)
    redrawn = through_the_codec(torch.stack(list(pictures.values())), codec, corruption=0.0)
    return Gallery(captions=tuple(pictures), features=picture_features(redrawn)), pictures


def picture_features(pictures: torch.Tensor) -> torch.Tensor:
    """Return what the judge compares: the mean colours of 16 x 16 fields, which small shifts of an edge change little.

    pictures: (picture, 3, height, width) uint8 -> (picture, feature) float32 in [0, 1].
    """
    return F.adaptive_avg_pool2d(pictures.float() / 255, FEATURE_SIDE).flatten(1)


def judge_pictures(group: str, captions: Sequence[str], pictures: torch.Tensor, gallery: Gallery) -> Judgement:
    """Compare pictures with what their captions ask for.

    pictures: (picture, 3, height, width) uint8, in the order of the captions.
    """
    answers = [
        {question: any(_agree(question, caption, seen) for seen in nearest) for question in questions(caption)}
        for caption, nearest in zip(captions, gallery.nearest(pictures), strict=True)
    ]
    posed = [question for question in QUESTIONS if any(question in answer for answer in answers)]
    return Judgement(group=group, scores={question: _score(question, captions, answers, gallery) for question in posed})


def questions(caption: str) -> tuple[str, ...]:
    """Return the questions that a caption poses: what it is, and its skin tone or colour, only if it has one."""
    has_attribute = bool(name_parts(parse_caption(caption)[0])[1])
    return QUESTIONS if has_attribute else ("style", "concept", "both")


def _agree(question: str, wanted: str, seen: str) -> bool:
    return _answer(question, wanted) == _answer(question, seen)


def _answer(question: str, caption: str) -> str:
    concept, style = parse_caption(caption)
    what, attribute = name_parts(concept)
    return dict(style=style, what=what, attribute=attribute, concept=concept, both=caption)[question]


def _score(question: str, captions: Sequence[str], answers: Sequence[Mapping[str, bool]], gallery: Gallery) -> Score:
    posed = [number for number, answer in enumerate(answers) if question in answer]
    right = sum(answers[number][question] for number in posed)
    low, high = wilson_interval(right, len(posed))
    shown = Counter(_answer(question, caption) for caption in gallery.captions)
    chances = [shown[_answer(question, captions[number])] / len(gallery.captions) for number in posed]
    return Score(right=right, of=len(posed), low=low, high=high, chance=sum(chances) / len(chances))
