"""Entities and their F1, compared with values of seqeval and of CoNLL's program."""

import pytest

from pipelines.evaluation.language.entity_f1 import entities, entity_f1, is_tag


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", set()),
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("I-PER I-PER O I-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER I-LOC", {("PER", 0, 1), ("LOC", 1, 2)}),
        ("B-PER I-LOC I-PER", {("PER", 0, 1), ("LOC", 1, 2), ("PER", 2, 3)}),
        ("O B-a-b I-a-b", {("a-b", 1, 3)}),
    ],
)
def test_entities_are_spans_of_one_type(tags, expected):
    assert entities(tags.split()) == expected


@pytest.mark.parametrize(
    ("expected", "predicted", "value"),
    [
        # The example of seqeval's README.
        (
            ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            0.5,
        ),
        (["B-A I-A O B-B"], ["B-A I-A O B-B"], 1.0),
        (["B-A I-A O B-B"], ["O O O O"], 0.0),
        (["O"], ["O"], 0.0),
        (["B-A O", "B-A O"], ["B-B O", "B-A B-A"], 2 * 1 / (2 + 3)),
        # One sentence's entity is not another's at the same place.
        (["B-A O", "O O"], ["O O", "B-A O"], 0.0),
    ],
)
def test_the_f1_is_that_of_whole_entities(expected, predicted, value):
    assert entity_f1(map(str.split, expected), map(str.split, predicted)) == pytest.approx(value)


def test_what_is_no_tag_is_told_from_tags():
    assert [text for text in ("O", "B-PER", "I-x-y", "NOUN", "B-", "E-PER", "b-PER", "3", "") if is_tag(text)] == [
        "O",
        "B-PER",
        "I-x-y",
    ]
