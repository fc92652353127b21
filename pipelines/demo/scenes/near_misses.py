"""Scenes that differ from a wanted one in a single attribute: the hardest candidates for a CLIP to rank."""

import dataclasses
import itertools

import numpy as np

from pipelines.demo.scenes.scenes import (
    BACKGROUND_COLOURS,
    POSITIONS,
    SHAPE_COLOURS,
    SHAPES,
    SIZES,
    SceneAttributes,
)

_VALUES = {
    "shape": SHAPES,
    "colour": tuple(SHAPE_COLOURS),
    "size": tuple(SIZES),
    "position": tuple(POSITIONS),
    "background": tuple(BACKGROUND_COLOURS),
}


def near_misses(attributes: SceneAttributes, num_scenes: int, random: np.random.Generator) -> list[SceneAttributes]:
    """Different scenes that differ in exactly one attribute, cycling through all five while they last.

    Raises ValueError if there are not `num_scenes` of them.
    """
    by_attribute = [_changed(attributes, name, random) for name in _VALUES]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_attribute))
    found = [scene for scene in turns if scene is not None]
    if num_scenes > len(found):
        raise ValueError(f"{num_scenes} near misses were requested; this scene has {len(found)}. Request fewer.")
    return found[:num_scenes]


def _changed(attributes: SceneAttributes, name: str, random: np.random.Generator) -> list[SceneAttributes]:
    """All scenes with another value of this attribute, in random order; invisible ones are left out."""
    now = getattr(attributes, name)
    hidden = {"colour": attributes.background, "background": attributes.colour}.get(name)
    others = [value for value in _VALUES[name] if value not in (now, hidden)]
    return [dataclasses.replace(attributes, **{name: others[index]}) for index in random.permutation(len(others))]
