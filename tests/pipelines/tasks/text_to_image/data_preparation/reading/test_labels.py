"""Labels in every spelling: unsafe by any of them is unsafe, and what cannot be believed is unknown."""

import math

import pytest

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy, drop_reason
from pipelines.tasks.text_to_image.data_preparation.reading.labels import Labels, fields_of, read_labels
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage


def verdict(metadata: dict, **policy) -> DropReason | None:
    labels = read_labels(fields_of(metadata))
    sample = CaptionImage(
        key="a", source="a.tar", caption="a cat", image_bytes=b"x", nsfw=labels.nsfw, unsafe_score=labels.unsafe_score
    )
    return drop_reason(sample, FilterPolicy(**policy))


@pytest.mark.parametrize(
    "metadata",
    [
        *(
            {"NSFW": label}
            for label in ("NSFW", "nsfw", " Unsafe ", "UNSURE", "porn", True, "true", 1, "1", 0.9, "0.9")
        ),
        *({name: "NSFW"} for name in ("nsfw", "Nsfw", "NSFW ", "\ufeffNSFW", "nsfw-label")),
        *({"punsafe": score} for score in (0.99, "0.99", 1, 97, 10**400, math.inf and 0.51, "NSFW")),
        *({"unsafe": label} for label in (True, "True", "yes", 1)),
        {"NSFW": "UNLIKELY", "punsafe": 0.99},
        {"NSFW": "UNLIKELY", "nsfw": "NSFW"},
        {"NSFW": "a label of tomorrow"},
        {"NSFW": ["NSFW"]},
    ],
    ids=str,
)
def test_unsafe_by_any_label_is_unsafe(metadata):
    assert verdict(metadata) is DropReason.NSFW


@pytest.mark.parametrize(
    "metadata",
    [
        *({"NSFW": label} for label in ("UNLIKELY", "unlikely", "safe", "SFW", False, "false", 0, "0.01")),
        *({"punsafe": score} for score in (0.5, "0.02", 0)),
        {"unsafe": False},
    ],
    ids=str,
)
def test_safe_in_every_spelling_is_kept_in_a_crawl(metadata):
    assert verdict(metadata, keep_unlabelled=False) is None


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        *({"NSFW": label} for label in (None, "", "nan", "None", math.nan, -1)),
        {"punsafe": "?"},
        {"punsafe": math.nan},
    ],
    ids=str,
)
def test_what_happens_to_the_unlabelled_is_the_publishers_choice(metadata):
    if metadata == {"punsafe": "?"}:
        assert verdict(metadata) is DropReason.NSFW  # a word that is not understood may mean anything
        return
    assert verdict(metadata) is None
    assert verdict(metadata, keep_unlabelled=False) is DropReason.UNLABELLED


def test_the_score_that_is_kept_can_be_chosen():
    assert verdict({"punsafe": 0.3}, max_unsafe_score=0.2) is DropReason.NSFW
    assert verdict({"punsafe": 0.9}, max_unsafe_score=1) is None


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [
        (640, 480, (640, 480)),
        ("640.0", "480", (640, 480)),
        (10**12, 480, (None, None)),
        (640, 0, (None, None)),
        (-640, 480, (None, None)),
        (math.nan, math.inf, (None, None)),
        (True, 480, (None, None)),
        ([640], 480, (None, None)),
        (10**400, 480, (None, None)),
    ],
)
def test_sizes_are_believed_if_they_are_plausible(width, height, size):
    labels = read_labels(fields_of({"original_width": width, "Original_Height": height}))
    assert (labels.original_width, labels.original_height) == size


@pytest.mark.parametrize(
    ("value", "similarity"), [(0.31, 0.31), ("0.31", 0.31), (31.2, None), (math.nan, None), ("?", None), (None, None)]
)
def test_similarities_are_cosines(value, similarity):
    assert read_labels(fields_of({"SIMILARITY": value})) == Labels(similarity=similarity)
