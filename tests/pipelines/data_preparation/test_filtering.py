"""The filter: each reason at its boundary, and reports that add up."""

import pytest

from pipelines.data_preparation.caption_image_sources import CaptionImage
from pipelines.data_preparation.filtering import (
    DropReason,
    FilterPolicy,
    FilterReport,
    drop_reason,
    drop_reason_of_size,
    report_of_drop,
)


def sample(**changes) -> CaptionImage:
    fields = dict(key="000", source="a.tar", caption="cat", image_bytes=b"x", nsfw="UNLIKELY")
    return CaptionImage(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"caption": "ab"}, DropReason.SHORT_CAPTION),
        ({"caption": "  ab  "}, DropReason.SHORT_CAPTION),
        ({"caption": None}, DropReason.SHORT_CAPTION),
        ({"nsfw": "UNSURE"}, DropReason.NSFW),
        ({"nsfw": "NSFW"}, DropReason.NSFW),
        ({"nsfw": None}, None),
        ({"image_bytes": None}, DropReason.MISSING_IMAGE),
        ({"original_width": 200, "original_height": 100}, None),
        ({"original_width": 201, "original_height": 100}, DropReason.EXTREME_ASPECT_RATIO),
        ({"original_width": 100, "original_height": 201}, DropReason.EXTREME_ASPECT_RATIO),
    ],
)
def test_a_sample_is_kept_or_dropped_as_in_the_original_run(changes, reason):
    assert drop_reason(sample(**changes), FilterPolicy()) == reason


def test_unlabelled_samples_are_dropped_on_request():
    policy = FilterPolicy(keep_unlabelled=False)
    assert drop_reason(sample(nsfw=None), policy) == DropReason.NSFW
    assert drop_reason(sample(), policy) is None


def test_other_limits_can_be_chosen():
    policy = FilterPolicy(min_caption_length=1, max_aspect_ratio=3, allowed_nsfw="SAFE")
    assert drop_reason(sample(caption="a", nsfw="SAFE"), policy) is None
    assert drop_reason_of_size(300, 100, policy) is None
    assert drop_reason_of_size(301, 100, policy) == DropReason.EXTREME_ASPECT_RATIO


def test_reports_add_up_and_survive_storage():
    report = FilterReport(kept=2)
    for reason in (DropReason.NSFW, DropReason.CORRUPT_IMAGE, DropReason.NSFW):
        report += report_of_drop(sample(), reason)
    report += FilterReport(kept=1, damaged_sources=("b.tar: cut",))
    assert report == FilterReport(
        kept=3,
        dropped={"nsfw": 2, "corrupt_image": 1},
        unreadable=("a.tar: 000 (corrupt_image)",),
        damaged_sources=("b.tar: cut",),
    )
    assert report.seen == 6
    assert FilterReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_aspect_ratio": 0.5}, "max_aspect_ratio is 0.5, expected 1 or more"),
        ({"max_aspect_ratio": float("nan")}, "max_aspect_ratio is nan"),
        ({"min_caption_length": -1}, "min_caption_length is -1"),
    ],
)
def test_impossible_limits_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FilterPolicy(**change)
