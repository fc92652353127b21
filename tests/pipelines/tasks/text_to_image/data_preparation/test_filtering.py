"""The filter: each reason at its boundary, and reports that add up."""

import pytest

from pipelines.tasks.text_to_image.data_preparation.filtering import (
    DropReason,
    FilterPolicy,
    FilterReport,
    drop_reason,
    drop_reason_of_size,
    is_labelled,
    report_of_drop,
)
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage


def sample(**changes) -> CaptionImage:
    fields = dict(key="000", source="a.tar", caption="cat", image_bytes=b"x", nsfw="UNLIKELY")
    return CaptionImage(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"caption": "ab"}, DropReason.SHORT_CAPTION),
        ({"caption": "  ab  "}, DropReason.SHORT_CAPTION),
        ({"caption": None}, DropReason.MISSING_CAPTION),
        ({"caption": " "}, DropReason.EMPTY_CAPTION),
        ({"nsfw": "UNSURE"}, DropReason.NSFW),
        ({"nsfw": "NSFW"}, DropReason.NSFW),
        ({"nsfw": None}, None),
        ({"unsafe_score": 0.6}, DropReason.NSFW),
        ({"image_bytes": None}, DropReason.MISSING_IMAGE),
        ({"original_width": 200, "original_height": 100}, None),
        ({"original_width": 201, "original_height": 100}, DropReason.EXTREME_ASPECT_RATIO),
        ({"original_width": 100, "original_height": 201}, DropReason.EXTREME_ASPECT_RATIO),
        ({"fault": DropReason.UNSUPPORTED_FORMAT, "image_bytes": None}, DropReason.UNSUPPORTED_FORMAT),
    ],
)
def test_a_sample_is_kept_or_dropped_for_a_reason(changes, reason):
    assert drop_reason(sample(**changes), FilterPolicy()) == reason


def test_unlabelled_samples_are_dropped_on_request():
    policy = FilterPolicy(keep_unlabelled=False)
    assert drop_reason(sample(nsfw=None), policy) == DropReason.UNLABELLED
    assert drop_reason(sample(nsfw=None, unsafe_score=0.1), policy) is None
    assert drop_reason(sample(), policy) is None


@pytest.mark.parametrize(("similarity", "reason"), [(0.3, None), (0.29, "low_similarity"), (None, "low_similarity")])
def test_a_least_similarity_drops_what_has_none(similarity, reason):
    assert drop_reason(sample(similarity=similarity), FilterPolicy(min_similarity=0.3)) == reason
    assert drop_reason(sample(similarity=similarity), FilterPolicy()) is None


def test_small_pictures_are_dropped_on_request():
    policy = FilterPolicy(min_side=64)
    assert drop_reason(sample(original_width=100, original_height=63), policy) == DropReason.TOO_SMALL
    assert drop_reason_of_size(64, 100, policy) is None


def test_other_limits_can_be_chosen():
    policy = FilterPolicy(min_caption_length=1, max_aspect_ratio=3, allowed_nsfw="SAFE")
    assert drop_reason(sample(caption="a", nsfw="SAFE"), policy) is None
    assert drop_reason_of_size(300, 100, policy) is None
    assert drop_reason_of_size(301, 100, policy) == DropReason.EXTREME_ASPECT_RATIO


def test_reports_add_up_and_survive_storage():
    found = (sample(), sample(nsfw=None), sample(nsfw=None, unsafe_score=0.1))
    report = FilterReport(kept=len(found), kept_unlabelled=sum(not is_labelled(one) for one in found))
    for reason in (DropReason.NSFW, DropReason.CORRUPT_IMAGE, DropReason.NSFW):
        report += report_of_drop(sample(), reason)
    heic = sample(fault=DropReason.UNSUPPORTED_FORMAT, fault_detail="HEIC")
    report += report_of_drop(heic, DropReason.UNSUPPORTED_FORMAT)
    report += FilterReport(damaged_sources=("b.tar: cut",))
    assert report == FilterReport(
        kept=3,
        kept_unlabelled=1,
        dropped={"nsfw": 2, "corrupt_image": 1, "unsupported_format": 1},
        details={"unsupported_format: HEIC": 1},
        unreadable=("a.tar: 000 (corrupt_image)", "a.tar: 000 (unsupported_format)"),
        damaged_sources=("b.tar: cut",),
    )
    assert report.seen == 7
    assert FilterReport.from_json(report.to_json()) == report


def test_a_report_stays_small_whatever_was_found():
    report = FilterReport()
    for number in range(500):
        strange = sample(key=str(number), fault=DropReason.UNREADABLE_FILE, fault_detail=f"fault {number}")
        report += report_of_drop(strange, DropReason.UNREADABLE_FILE) + FilterReport(damaged_sources=(str(number),))
    assert report.dropped == {"unreadable_file": 500} and sum(report.details.values()) == 500
    assert (len(report.details), len(report.unreadable), len(report.damaged_sources)) == (101, 200, 200)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_aspect_ratio": 0.5}, "max_aspect_ratio is 0.5, expected 1 or more"),
        ({"max_aspect_ratio": float("nan")}, "max_aspect_ratio is nan"),
        ({"min_caption_length": -1}, "min_caption_length is -1"),
        ({"max_caption_length": 2}, "max_caption_length is 2, expected at least min_caption_length"),
        ({"min_side": 0}, "min_side is 0"),
        ({"max_unsafe_score": float("nan")}, "max_unsafe_score is nan"),
        ({"min_similarity": 31.0}, "min_similarity is 31.0, expected a cosine"),
    ],
)
def test_impossible_limits_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FilterPolicy(**change)
