"""Judges any picture by its caption, if the caption is one of the demo's, and sums up what it says of many."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.features.evaluation.figures import wilson_interval
from pipelines.tools.demo.scenes.pair_judge import judge_pair
from pipelines.tools.demo.scenes.pairs import PairAttributes, held_out_pairs, pair_caption, pairs, parse_pair_caption
from pipelines.tools.demo.scenes.scene_captions import held_out_captions, parse_caption
from pipelines.tools.demo.scenes.scene_judge import chance_level, judge_picture
from pipelines.tools.demo.scenes.scenes import SceneAttributes

SCORED = ("colour", "background", "position", "shape")
"""What `SceneAttributes.scored` lists."""

ONE_SHAPE, TWO_SHAPES = "one shape", "two shapes"


@dataclass(frozen=True, kw_only=True)
class SceneScore:
    """How many captions of one kind of scene were drawn with every attribute right."""

    kind: str
    """ONE_SHAPE or TWO_SHAPES."""

    num_captions: int
    exact_match: float
    low: float
    """Lower end of Wilson's 95 % interval of `exact_match`."""

    high: float
    exact_match_without_ranking: float
    """The same for a single candidate: what ranking adds is the difference."""

    chance: float
    """The score by chance."""

    attributes: Mapping[str, float]
    """The share of captions drawn with the right colour, position, relation, ..., each by itself."""


def held_out_scene_captions(num_scenes: int, num_pairs: int) -> list[str]:
    """Captions of scenes of one shape and of two that training never sees: two, then one, as long as both last.

    Raises ValueError if there are not enough.
    """
    ones = iter(held_out_captions(num_scenes))
    twos = iter([pair_caption(pair) for pair in held_out_pairs(num_pairs)])
    return list(_in_turns(ones, twos))


def _in_turns(ones: Iterator[str], twos: Iterator[str]) -> Iterator[str]:
    while turn := [*itertools.islice(ones, 2), *itertools.islice(twos, 1)]:
        yield from turn


def judge_caption(caption: str, picture: np.ndarray) -> dict[str, bool] | None:
    """Return for each scored attribute whether the picture, (height, width, 3) uint8, shows what the caption says.

    None: the caption is none of a scene, or the picture is too small to be judged.
    """
    try:
        wanted = parse_scene_caption(caption)
        if isinstance(wanted, PairAttributes):
            return judge_pair(picture).compared(wanted)
        seen = judge_picture(picture).scored
    except ValueError:
        return None
    return {name: one == other for name, one, other in zip(SCORED, wanted.scored, seen, strict=True)}


def parse_scene_caption(caption: str) -> SceneAttributes | PairAttributes:
    """What a caption of either kind says. ValueError if it is of neither."""
    try:
        return parse_pair_caption(caption)
    except ValueError:
        return parse_caption(caption)


def describe_scene(picture: np.ndarray) -> str:
    """What the judge sees, in words. picture: as `judge_picture` takes it, whose errors this raises."""
    seen = judge_picture(picture)
    return (judge_pair(picture).description if len(picture) >= 64 else "") or seen.description


def score_drawings(
    captions: Sequence[str], best: Sequence[np.ndarray], unranked: Sequence[np.ndarray]
) -> list[SceneScore]:
    """Score the pictures of scenes' captions, by kind of scene: CLIP's choice, and one candidate without CLIP.

    best, unranked: (height, width, 3) uint8 each, in the captions' order. Raises ValueError for a caption of no scene.
    """
    judged = {ONE_SHAPE: [], TWO_SHAPES: []}
    for caption, chosen, single in zip(captions, best, unranked, strict=True):
        answers = judge_caption(caption, chosen), judge_caption(caption, single)
        if None in answers:
            raise ValueError(f"{caption!r} cannot be judged; expected a scene's caption and a square picture.")
        judged[TWO_SHAPES if "relation" in answers[0] else ONE_SHAPE].append(answers)
    return [_score(kind, answers) for kind, answers in judged.items() if answers]


def _score(kind: str, answers: Sequence[tuple[Mapping[str, bool], Mapping[str, bool]]]) -> SceneScore:
    right = sum(all(best.values()) for best, _ in answers)
    low, high = wilson_interval(right, len(answers))
    return SceneScore(
        kind=kind,
        num_captions=len(answers),
        exact_match=right / len(answers),
        low=low,
        high=high,
        exact_match_without_ranking=sum(all(single.values()) for _, single in answers) / len(answers),
        chance=chance_level() if kind == ONE_SHAPE else 1 / sum(len(pairs(held_out=side)) for side in (True, False)),
        attributes={name: sum(best[name] for best, _ in answers) / len(answers) for name in answers[0][0]},
    )
