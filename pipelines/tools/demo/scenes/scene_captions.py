"""Captions of scenes, and the way back from a caption to the scene's attributes."""

import functools
import hashlib
import re

from pipelines.tools.demo.scenes.scenes import (
    BACKGROUND_COLOURS,
    SHAPE_COLOURS,
    SHAPES,
    SIZES,
    SceneAttributes,
    held_out_scenes,
)

# Each states all five attributes in at most thirteen words, so that any of them fits in sixteen tokens.
CAPTION_TEMPLATES = (
    "a {size} {colour} {shape} {place} of a {background} background",
    "{place} of a {background} background, a {size} {colour} {shape}",
    "{size} {colour} {shape} {place}, {background} background",
    "{background} background with a {size} {colour} {shape} {place}",
)
_PLACES = {
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
    "centre": "in the centre",
    "top left": "in the top left corner",
    "top right": "in the top right corner",
    "bottom left": "in the bottom left corner",
    "bottom right": "in the bottom right corner",
}


def caption_of(attributes: SceneAttributes, template_index: int | None = None) -> str:
    """The scene in words: in the template of this index, or in the scene's own, which is always the same.

    With one caption for each scene, pictures of equal scenes are never taken for each other's counterexamples when a
    CLIP learns from them.
    """
    if template_index is None:
        digest = hashlib.sha256("|".join((*attributes.scored, attributes.size)).encode()).digest()
        template_index = digest[0] % len(CAPTION_TEMPLATES)
    return CAPTION_TEMPLATES[template_index].format(
        size=attributes.size,
        colour=attributes.colour,
        shape=attributes.shape,
        place=_PLACES[attributes.position],
        background=attributes.background,
    )


def held_out_captions(num_captions: int) -> list[str]:
    """Captions of the first held-out scenes. ValueError if there are not enough."""
    return [caption_of(attributes) for attributes in held_out_scenes(num_captions)]


def parse_caption(caption: str) -> SceneAttributes:
    """The attributes that `caption_of` put into the caption.

    Raises ValueError with the caption and an example if it was not made from one of the templates.
    """
    for pattern in _patterns():
        match = pattern.fullmatch(caption.strip().lower())
        if match is not None:
            values = match.groupdict()
            values["position"] = {place: position for position, place in _PLACES.items()}[values.pop("place")]
            return SceneAttributes(**values)
    raise ValueError(
        f"{caption!r} does not describe a scene; expected for example 'a small red star on the left of a blue "
        f"background', with a shape out of {', '.join(SHAPES)}."
    )


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    choices = {
        "size": SIZES,
        "colour": SHAPE_COLOURS,
        "shape": SHAPES,
        "place": _PLACES.values(),
        "background": BACKGROUND_COLOURS,
    }
    groups = {name: f"(?P<{name}>{'|'.join(values)})" for name, values in choices.items()}
    return tuple(re.compile(template.format(**groups)) for template in CAPTION_TEMPLATES)
