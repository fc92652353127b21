"""The judge of scenes of two shapes: each half of the picture is judged as a picture of one shape."""

from dataclasses import dataclass

import numpy as np

from pipelines.tools.demo.scenes.pairs import PLACES, PairAttributes, Thing
from pipelines.tools.demo.scenes.scene_judge import Judgement, judge_picture, share_unlike_background
from pipelines.tools.demo.scenes.scenes import POSITIONS

LARGEST_STRAY_SHARE = 0.008
"""Of the area that belongs to neither shape's half square."""


@dataclass(frozen=True, kw_only=True)
class PairJudgement:
    """What the judge sees. What it cannot determine is None."""

    first: Thing | None = None
    second: Thing | None = None
    relation: str | None = None
    background: str | None = None

    @property
    def description(self) -> str:
        """What the judge sees, in words; empty if it does not see two shapes."""
        if self.first is None or self.second is None:
            return ""
        shapes = f"{' '.join(self.first)} {self.relation} a {' '.join(self.second)}"
        return f"{shapes}, on a {self.background or 'nameless'} background"

    def compared(self, wanted: PairAttributes) -> dict[str, bool]:
        """Which attributes are the wanted ones; colours and shapes in the places where they are wanted."""
        seen = (self.first or (None, None), self.second or (None, None))
        asked = (wanted.first, wanted.second)
        return {
            "relation": self.relation == wanted.relation,
            "colour": [thing[0] for thing in seen] == [thing[0] for thing in asked],
            "shape": [thing[1] for thing in seen] == [thing[1] for thing in asked],
            "background": self.background == wanted.background,
        }


def judge_pair(picture: np.ndarray) -> PairJudgement:
    """Read both shapes from a picture: (height, width, 3) uint8, square, at least 64 pixels a side.

    Raises ValueError for any other array.
    """
    if picture.ndim != 3 or picture.shape[0] < 64:
        raise ValueError(f"The picture has shape {picture.shape}; expected a square of at least 64 pixels a side.")
    found = {relation: _judge_halves(picture, places) for relation, places in PLACES.items()}
    relation = max(found, key=lambda name: min(half.match for half in found[name]))
    first, second = found[relation]
    background = first.background if first.background == second.background else None
    things = _thing(first), _thing(second)
    if None in things or _strays(picture, PLACES[relation]) > LARGEST_STRAY_SHARE:
        return PairJudgement(background=background)
    return PairJudgement(first=things[0], second=things[1], relation=relation, background=background)


def _judge_halves(picture: np.ndarray, places: tuple[str, str]) -> tuple[Judgement, Judgement]:
    first, second = (judge_picture(picture[_square(picture, place)]) for place in places)
    return first, second


def _square(picture: np.ndarray, place: str) -> tuple[slice, slice]:
    """The square of half the picture's side around a place."""
    half = picture.shape[0] // 2
    x, y = (round(share * picture.shape[0]) - half // 2 for share in POSITIONS[place])
    return slice(y, y + half), slice(x, x + half)


def _strays(picture: np.ndarray, places: tuple[str, str]) -> float:
    outside = np.ones(picture.shape[:2], bool)
    for place in places:
        outside[_square(picture, place)] = False
    return share_unlike_background(picture, outside)


def _thing(half: Judgement) -> Thing | None:
    centred = half.position == "centre" and half.shape is not None and half.colour is not None
    return (half.colour, half.shape) if centred else None
