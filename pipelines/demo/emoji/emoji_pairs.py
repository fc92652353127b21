"""Pairs of a concept and a style, their captions, and which are held out. Pure.

A concept is what all sets draw under the same code points, such as "waving hand, dark skin tone". Three tests are held
out, each of combinations whose parts are all trained on:

- `styles`: a concept in one style; with it go all its skin tones.
- `skin_tones`: a role of a person, such as judge, with one of five skin tones, in all styles and genders.
- `colours`: a heart, circle or square of one colour, in all styles.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.demo.emoji.emoji_sets import code_points

TRAIN, STYLES_TEST, TONES_TEST, COLOURS_TEST = "train", "styles", "skin_tones", "colours"
TONES = ("light", "medium-light", "medium", "medium-dark", "dark")
HELD_OUT_COLOURS = {
    "heart": ("green", "purple", "black"),
    "circle": ("orange", "blue", "white"),
    "square": ("red", "yellow", "brown"),
}
"""Each colour is held out in one shape and trained on in the two others."""

SEPARATOR = ", in the style of "
TONE = re.compile(r", ((?:medium-)?(?:light|dark)|medium) skin tone")
COLOURED_SHAPE = re.compile(r"(\w+) (?:large )?(heart|circle|square)")
GENDER = re.compile(r"^(?:man|woman|person) ")


@dataclass(frozen=True, kw_only=True)
class Concept:
    """What an emoji means, in whatever style."""

    hexcode: str
    """Its code points without variation selectors."""

    name: str
    """Unicode's name, such as "firefighter, dark skin tone"."""

    is_role: bool
    """Whether Unicode calls it a person's role."""

    @property
    def parts(self) -> tuple[str, str]:
        """What it is, and its skin tone or colour: ("firefighter", "dark"), ("heart", "green"), ("apple", "")."""
        return name_parts(self.name)


@dataclass(frozen=True, kw_only=True)
class EmojiPair:
    """A concept in a style."""

    concept: Concept
    style: str
    split: str
    """TRAIN, or the test that it is held out for."""

    @property
    def caption(self) -> str:
        """Its caption, which no other pair has."""
        return f"{self.concept.name}{SEPARATOR}{self.style}"


def parse_caption(caption: str) -> tuple[str, str]:
    """Return a caption's concept and style, the inverse of `EmojiPair.caption`."""
    name, _, style = caption.rpartition(SEPARATOR)
    return name, style


def name_parts(name: str) -> tuple[str, str]:
    """Return what a concept's name names, and its skin tone or colour, empty without one."""
    if tone := TONE.search(name):
        return TONE.sub("", name), tone[1]
    if shape := COLOURED_SHAPE.fullmatch(name):
        return shape[2], shape[1]
    return name, ""


def concepts_of(entries: Iterable[Mapping[str, Any]]) -> list[Concept]:
    """Return the concepts of OpenMoji's list that Unicode has too, without people of two different skin tones.

    Couples have twenty-five combinations of skin tones, which are as many pictures that differ in little.
    """
    return [
        Concept(
            hexcode=code_points(entry["hexcode"]),
            name=entry["annotation"].replace("⊛ ", "").replace(":", ","),
            is_role=entry["subgroups"] == "person-role",
        )
        for entry in entries
        if not entry["group"].startswith("extras") and "," not in str(entry["skintone"])
    ]


def pairs_of(
    concepts: Sequence[Concept], drawn: Mapping[str, Mapping[str, Any]], held_out_share: float
) -> list[EmojiPair]:
    """Return all pairs of the concepts that two or more styles have drawn, each with the split that it belongs to.

    drawn: style -> code points -> anything. held_out_share: the share of the concepts of which one style is held out.
    The same on every machine, whatever the order.
    """
    shared = {
        concept: [name for name, drawings in drawn.items() if concept.hexcode in drawings] for concept in concepts
    }
    return [
        EmojiPair(concept=concept, style=style, split=_split(concept, style, sorted(styles), held_out_share))
        for concept, styles in shared.items()
        if len(styles) >= 2
        for style in styles
    ]


def _split(concept: Concept, style: str, styles: Sequence[str], held_out_share: float) -> str:
    subject, attribute = concept.parts
    if subject in HELD_OUT_COLOURS and attribute:
        return COLOURS_TEST if attribute in HELD_OUT_COLOURS[subject] else TRAIN
    if concept.is_role:
        held_out_tone = TONES[_digest(f"tone|{GENDER.sub('', subject)}") % len(TONES)]
        return TONES_TEST if attribute == held_out_tone else TRAIN
    if _digest(f"share|{subject}") >= held_out_share * 2**32:
        return TRAIN
    return STYLES_TEST if style == styles[_digest(f"style|{subject}") % len(styles)] else TRAIN


def _digest(text: str) -> int:
    """Return a number below 2**32 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(f"emoji, held out|{text}".encode()).digest()[:4], "little")
