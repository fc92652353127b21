"""Which captions the emoji demo draws: for the judge, and for its picture. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from pipelines.demo.emoji.emoji_pairs import (
    COLOURS_TEST,
    SEPARATOR,
    STYLES_TEST,
    TONES,
    TONES_TEST,
    TRAIN,
    name_parts,
    parse_caption,
)

TRAINED_ON = "trained on"
HELD_OUT_THINGS = "held out in this style: things"
HELD_OUT_PEOPLE = "held out in this style: people"
HELD_OUT_TONES = "role and skin tone held out"
HELD_OUT_COLOURS = "colour and shape held out"


def judged_groups(captions: Mapping[str, Sequence[str]], most: int) -> dict[str, list[str]]:
    """Return the captions to judge by group, at most so many of each, always the same.

    captions: split -> its captions.
    """
    people = {name_parts(name)[0] for name in _concepts(captions.values()) if name_parts(name)[1] in TONES}
    is_person = {caption: name_parts(parse_caption(caption)[0])[0] in people for caption in captions[STYLES_TEST]}
    groups = {
        TRAINED_ON: captions[TRAIN],
        HELD_OUT_THINGS: [caption for caption, person in is_person.items() if not person],
        HELD_OUT_PEOPLE: [caption for caption, person in is_person.items() if person],
        HELD_OUT_TONES: captions[TONES_TEST],
        HELD_OUT_COLOURS: captions[COLOURS_TEST],
    }
    return {group: _sample(found, most) for group, found in groups.items() if found}


def pictured_concepts(
    groups: Mapping[str, Sequence[str]], captions: Collection[str], styles: Sequence[str], *, per_group: int
) -> list[str]:
    """Return the concepts that the picture shows: the first of each held-out group that all styles have, not the best.

    captions: those of all true pictures.
    """
    chosen: dict[str, None] = {}
    for group in groups:
        names = dict.fromkeys(parse_caption(caption)[0] for caption in groups[group] if group != TRAINED_ON)
        whole = [name for name in names if all(f"{name}{SEPARATOR}{style}" in captions for style in styles)]
        chosen |= dict.fromkeys(whole[:per_group])
    return list(chosen)


def _concepts(captions: Iterable[Sequence[str]]) -> set[str]:
    return {parse_caption(caption)[0] for part in captions for caption in part}


def _sample(captions: Iterable[str], most: int) -> list[str]:
    return sorted(captions, key=lambda caption: hashlib.sha256(f"judged|{caption}".encode()).digest())[:most]
