from collections import Counter

import pytest

from pipelines.demo.emoji.emoji_pairs import (
    COLOURS_TEST,
    HELD_OUT_COLOURS,
    STYLES_TEST,
    TONES,
    TONES_TEST,
    TRAIN,
    concepts_of,
    name_parts,
    pairs_of,
    parse_caption,
)

STYLE_NAMES = ("OpenMoji", "Noto", "Twemoji", "Fluent")


def all_pairs(entries, share=0.0, styles=STYLE_NAMES):
    concepts = concepts_of(entries)
    return pairs_of(concepts, {style: {one.hexcode: "" for one in concepts} for style in styles}, share)


def tones_of(make_entry, name, start, **more):
    names = [name, *(f"{name}: {tone} skin tone" for tone in TONES)]
    return [make_entry(f"{start}{number}", one, **more) for number, one in enumerate(names)]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("firefighter, medium-dark skin tone", ("firefighter", "medium-dark")),
        ("woman walking, medium skin tone, facing right", ("woman walking, facing right", "medium")),
        ("green heart", ("heart", "green")),
        ("black large square", ("square", "black")),
        ("heart with arrow", ("heart with arrow", "")),
        ("red apple", ("red apple", "")),
    ],
)
def test_a_name_has_a_subject_and_a_skin_tone_or_colour(name, parts):
    assert name_parts(name) == parts


def test_captions_are_read_back(make_entry):
    (pair, *_) = all_pairs([make_entry("1F44B", "⊛ waving hand: dark skin tone")])
    assert pair.caption == "waving hand, dark skin tone, in the style of OpenMoji"
    assert parse_caption(pair.caption) == ("waving hand, dark skin tone", "OpenMoji")


def test_extras_and_people_of_two_skin_tones_are_no_concepts(make_entry):
    entries = [
        make_entry("1", "apple"),
        make_entry("2", "a logo", group="extras-openmoji"),
        make_entry("3", "kiss: light skin tone, dark skin tone", skintone="1,5"),
        make_entry("4-FE0F", "hand: light skin tone", skintone=1),
    ]
    assert [(one.hexcode, one.name) for one in concepts_of(entries)] == [("1", "apple"), ("4", "hand, light skin tone")]


def test_a_concept_of_one_style_alone_is_left_out(make_entry):
    concepts = concepts_of([make_entry("1", "apple"), make_entry("2", "pear")])
    pairs = pairs_of(concepts, {"Noto": {"1": "", "2": ""}, "Fluent": {"2": ""}}, 0.0)
    assert {(pair.concept.name, pair.style) for pair in pairs} == {("pear", "Noto"), ("pear", "Fluent")}


def test_the_stated_share_of_concepts_is_held_out_in_one_style_with_all_skin_tones(make_entry):
    entries = [one for number in range(300) for one in tones_of(make_entry, f"thing {number}", f"E{number:03X}")]
    pairs = all_pairs(entries, share=0.2)
    held_out = [pair for pair in pairs if pair.split == STYLES_TEST]
    subjects = Counter((pair.concept.parts[0], pair.style) for pair in held_out)
    assert 40 < len(subjects) < 80 and set(subjects.values()) == {1 + len(TONES)}
    assert len({subject for subject, _ in subjects}) == len(subjects), "one style of each"
    assert {style for _, style in subjects} == set(STYLE_NAMES)
    again = [pair.split for pair in all_pairs(entries[::-1], share=0.2, styles=STYLE_NAMES[::-1])]
    assert sorted(again) == sorted(pair.split for pair in pairs), "whatever the order"


def test_a_role_is_held_out_with_one_skin_tone_in_all_styles_whatever_the_gender(make_entry):
    roles = [f"{person}{trade}" for trade in ("cook", "pilot", "judge") for person in ("", "man ", "woman ")]
    entries = [
        one
        for number, role in enumerate(roles)
        for one in tones_of(make_entry, role, f"F{number}", subgroups="person-role")
    ]
    pairs = all_pairs(entries, share=0.5)
    for trade in ("cook", "pilot", "judge"):
        of_role = [pair for pair in pairs if pair.concept.parts[0].endswith(trade)]
        held_out = [pair for pair in of_role if pair.split == TONES_TEST]
        assert len({pair.concept.parts[1] for pair in held_out}) == 1 and len(held_out) == 3 * len(STYLE_NAMES)
        assert {pair.split for pair in of_role if pair not in held_out} == {TRAIN}


def test_every_held_out_colour_and_shape_is_trained_on_in_other_combinations(make_entry):
    colours = sorted({colour for held_out in HELD_OUT_COLOURS.values() for colour in held_out})
    entries = [make_entry(f"{c}{s}", f"{c} {s}") for c in colours for s in HELD_OUT_COLOURS]
    pairs = all_pairs(entries, share=0.5)
    held_out = {pair.concept.parts for pair in pairs if pair.split == COLOURS_TEST}
    trained = {pair.concept.parts for pair in pairs if pair.split == TRAIN}
    assert held_out == {(shape, colour) for shape, found in HELD_OUT_COLOURS.items() for colour in found}
    assert not held_out & trained and len(held_out | trained) == len(entries)
    for shape, colour in held_out:
        assert sum(one == shape for one, _ in trained) >= 3 and sum(one == colour for _, one in trained) == 2
