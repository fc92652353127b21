"""Scenes of two shapes in a relation: captions, pictures, and which of them training never sees."""

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from pipelines.tools.demo.scenes.scenes import (
    BACKGROUND_COLOURS,
    POSITIONS,
    SHAPE_COLOURS,
    SHAPES,
    SIZES,
    ScenesConfig,
    draw_shape,
)

PAIR_SIZE = "small"
PLACES = {"left of": ("left", "right"), "above": ("top", "bottom")}
"""Where the first and the second shape of a relation are, as single shapes are."""

MIRRORED = {"left of": "right of", "above": "below"}
HELD_OUT_SHARE = 8
"""One pair in so many is held out."""

CAPTION_TEMPLATES = (
    "a {first_colour} {first_shape} {relation} a {second_colour} {second_shape}, {background} background",
    "{background} background with a {first_colour} {first_shape} {relation} a {second_colour} {second_shape}",
)

Thing = tuple[str, str]
"""Colour and shape."""


@dataclass(frozen=True, kw_only=True, order=True)
class PairAttributes:
    """What a caption says about a scene of two shapes."""

    first: Thing
    second: Thing
    relation: str
    """How the first is to the second, one of PLACES."""

    background: str
    """One of BACKGROUND_COLOURS, neither shape's colour."""

    def __post_init__(self) -> None:
        if self.relation not in PLACES:
            raise ValueError(f"relation is {self.relation!r}; expected one of {', '.join(PLACES)}.")
        if self.first == self.second:
            raise ValueError(f"Two shapes are both {' '.join(self.first)}; expected different ones.")
        if self.background in (self.first[0], self.second[0]):
            raise ValueError(f"A {self.background} shape on a {self.background} background cannot be seen. Change one.")


@functools.cache
def pairs(*, held_out: bool) -> tuple[PairAttributes, ...]:
    """Every pair that is held out, in no training picture of any seed; or every other one. In an order of chance."""
    things = tuple(itertools.product(SHAPE_COLOURS, SHAPES))
    products = itertools.product(itertools.permutations(things, 2), PLACES, BACKGROUND_COLOURS)
    ranked = sorted(
        (_digest(first, second, relation, background), first, second, relation, background)
        for (first, second), relation, background in products
        if background not in (first[0], second[0])
    )
    first_kept = len(ranked) // HELD_OUT_SHARE
    chosen = ranked[:first_kept] if held_out else ranked[first_kept:]
    return tuple(PairAttributes(first=a, second=b, relation=relation, background=c) for _, a, b, relation, c in chosen)


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(("dalle-collab demo pairs, held out, 1", *parts)).encode()).digest()


def held_out_pairs(num_pairs: int) -> Iterator[PairAttributes]:
    """The first held-out pairs. ValueError if there are not enough."""
    known = pairs(held_out=True)
    if not 0 <= num_pairs <= len(known):
        raise ValueError(f"{num_pairs} held-out pairs were requested; there are {len(known)}.")
    yield from known[:num_pairs]


def draw_training_pair(random: np.random.Generator) -> PairAttributes:
    """A pair that is not held out."""
    known = pairs(held_out=False)
    return known[int(random.integers(len(known)))]


def render_pair(
    attributes: PairAttributes, random: np.random.Generator, config: ScenesConfig | None = None
) -> Image.Image:
    """Draw the pair: an RGB picture of `config.image_size` squared."""
    config = config or ScenesConfig()
    picture = Image.new("RGB", (config.image_size,) * 2, BACKGROUND_COLOURS[attributes.background])
    for (colour, shape), place in zip((attributes.first, attributes.second), PLACES[attributes.relation], strict=True):
        draw_shape(picture, shape, colour, SIZES[PAIR_SIZE], POSITIONS[place], random, config)
    return picture


def pair_caption(attributes: PairAttributes) -> str:
    """The pair in words, always the same ones; half of the captions name the second shape first."""
    digest = _digest(attributes.first, attributes.second, attributes.relation, attributes.background, "caption")
    named = (attributes.first, attributes.second)
    relation = attributes.relation
    if digest[0] % 2:
        named, relation = named[::-1], MIRRORED[relation]
    return CAPTION_TEMPLATES[digest[1] % len(CAPTION_TEMPLATES)].format(
        first_colour=named[0][0],
        first_shape=named[0][1],
        relation=relation,
        second_colour=named[1][0],
        second_shape=named[1][1],
        background=attributes.background,
    )


def parse_pair_caption(caption: str) -> PairAttributes:
    """The pair that `pair_caption` put into words. ValueError if it was not made by one of its templates."""
    for pattern in _patterns():
        match = pattern.fullmatch(caption.strip().lower())
        if match is not None:
            words = match.groupdict()
            things = [(words["first_colour"], words["first_shape"]), (words["second_colour"], words["second_shape"])]
            plain = {mirrored: relation for relation, mirrored in MIRRORED.items()}
            if words["relation"] in plain:
                things.reverse()
            relation = plain.get(words["relation"], words["relation"])
            return PairAttributes(first=things[0], second=things[1], relation=relation, background=words["background"])
    raise ValueError(f"{caption!r} does not describe two shapes; expected for example {pair_caption(_example())!r}.")


def _example() -> PairAttributes:
    return PairAttributes(first=("red", "star"), second=("green", "ring"), relation="left of", background="white")


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    choices = {
        "first_colour": SHAPE_COLOURS,
        "first_shape": SHAPES,
        "relation": (*MIRRORED, *MIRRORED.values()),
        "second_colour": SHAPE_COLOURS,
        "second_shape": SHAPES,
        "background": BACKGROUND_COLOURS,
    }
    groups = {name: f"(?P<{name}>{'|'.join(values)})" for name, values in choices.items()}
    return tuple(re.compile(template.format(**groups)) for template in CAPTION_TEMPLATES)
