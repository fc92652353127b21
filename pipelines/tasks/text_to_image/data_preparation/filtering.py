"""Which samples are kept, and why the others are dropped. Pure."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from pipelines.tasks.text_to_image.data_preparation.reading.captions import (
    LARGEST_TEXT,
    is_file_name,
    is_placeholder,
    is_url,
    is_written_list,
    visible_length,
)
from pipelines.tasks.text_to_image.data_preparation.reading.labels import SAFE
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, SourceDamage

MOST_NAMES = 200
"""Names of samples and sources in a report; more are counted."""

MOST_DETAILS = 100
"""Kinds of details in a report: a hostile source could invent a new one for each sample."""


class DropReason(StrEnum):
    """Why a sample is not in the dataset."""

    MISSING_CAPTION = "missing_caption"
    EMPTY_CAPTION = "empty_caption"
    SHORT_CAPTION = "short_caption"
    LONG_CAPTION = "long_caption"
    SEVERAL_LINES = "several_lines"
    PLACEHOLDER_CAPTION = "placeholder_caption"
    FILE_NAME_CAPTION = "file_name_caption"
    URL_CAPTION = "url_caption"
    LIST_CAPTION = "list_caption"
    UNREADABLE_TEXT = "unreadable_text"
    DAMAGED_METADATA = "damaged_metadata"
    NSFW = "nsfw"
    UNLABELLED = "unlabelled"
    LOW_SIMILARITY = "low_similarity"
    EXTREME_ASPECT_RATIO = "extreme_aspect_ratio"
    TOO_SMALL = "too_small"
    MISSING_IMAGE = "missing_image"
    CORRUPT_IMAGE = "corrupt_image"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TOO_MANY_PIXELS = "too_many_pixels"
    DECODING_FAILED = "decoding_failed"
    TOO_LARGE = "too_large"
    UNREADABLE_FILE = "unreadable_file"
    INCOMPLETE = "incomplete"
    UNKNOWN_KIND = "unknown_kind"
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"


NAMED = frozenset(
    (
        *(DropReason.MISSING_IMAGE, DropReason.CORRUPT_IMAGE, DropReason.TOO_LARGE, DropReason.UNREADABLE_FILE),
        *(DropReason.INCOMPLETE, DropReason.UNREADABLE_TEXT, DropReason.DAMAGED_METADATA),
        *(DropReason.UNSUPPORTED_FORMAT, DropReason.TOO_MANY_PIXELS, DropReason.DECODING_FAILED),
    )
)
"""Reasons for which a report names the samples: a file is at fault, and can be mended."""


@dataclass(frozen=True, kw_only=True)
class FilterPolicy:
    """The filter. The first defaults are the original run's: they dropped about a tenth of LAION."""

    min_caption_length: int = 3
    """Characters in the shortest caption kept; an ideograph or an emoji counts two."""
    max_caption_length: int = 2000
    """Characters in the longest caption kept."""
    keep_placeholders: bool = False
    """Whether captions that say nothing are kept: "nan", dots alone, file names, addresses, printed lists."""
    max_aspect_ratio: float = 2.0
    """Largest ratio of longer to shorter side kept."""
    min_side: int = 1
    """Pixels of the shorter side of the smallest picture kept."""
    allowed_nsfw: str = SAFE
    """The NSFW label to keep."""
    max_unsafe_score: float = 0.5
    """Highest probability of an unsafe picture kept, where metadata give one."""
    keep_unlabelled: bool = True
    """Whether samples without an NSFW label or score are kept. Own pictures seldom have one; in a crawl drop them."""
    min_similarity: float | None = None
    """Lowest similarity of caption and picture kept; samples without one are dropped then. None: not looked at."""
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    """How captions are read; give the same to `find_sources`."""

    def __post_init__(self) -> None:
        if self.min_caption_length < 0:
            raise ValueError(f"min_caption_length is {self.min_caption_length}, expected 0 or more.")
        if not max(1, self.min_caption_length) <= self.max_caption_length <= LARGEST_TEXT:
            raise ValueError(
                f"max_caption_length is {self.max_caption_length}, expected at least min_caption_length "
                f"({self.min_caption_length}) and at most {LARGEST_TEXT}."
            )
        if not self.max_aspect_ratio >= 1:
            raise ValueError(f"max_aspect_ratio is {self.max_aspect_ratio}, expected 1 or more (a square has 1).")
        if self.min_side < 1:
            raise ValueError(f"min_side is {self.min_side}, expected 1 pixel or more.")
        if not 0 <= self.max_unsafe_score <= 1:
            raise ValueError(f"max_unsafe_score is {self.max_unsafe_score}, expected a probability from 0 to 1.")
        if self.min_similarity is not None and not -1 <= self.min_similarity <= 1:
            raise ValueError(f"min_similarity is {self.min_similarity}, expected a cosine from -1 to 1.")


@dataclass(frozen=True, kw_only=True)
class FilterReport:
    """What was kept and what was dropped; reports of parts add up."""

    kept: int = 0
    """Samples kept."""
    kept_unlabelled: int = 0
    """Samples kept that had no NSFW label and no score."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Samples dropped, by DropReason."""
    details: Mapping[str, int] = field(default_factory=dict)
    """Some of the dropped again, by what was found, such as "unsupported_format: .heic"."""
    unreadable: tuple[str, ...] = ()
    """Names of the first samples whose file was at fault."""
    damaged_sources: tuple[str, ...] = ()
    """The first sources that ended early, and what was lost."""

    @property
    def seen(self) -> int:
        """All samples filtered."""
        return self.kept + sum(self.dropped.values())

    def __add__(self, other: "FilterReport") -> "FilterReport":
        counts = Counter(self.dropped) + Counter(other.dropped)
        return FilterReport(
            kept=self.kept + other.kept,
            kept_unlabelled=self.kept_unlabelled + other.kept_unlabelled,
            dropped={reason.value: counts[reason] for reason in DropReason if counts[reason]},
            details=_bounded(Counter(self.details) + Counter(other.details)),
            unreadable=(self.unreadable + other.unreadable)[:MOST_NAMES],
            damaged_sources=(self.damaged_sources + other.damaged_sources)[:MOST_NAMES],
        )

    def to_json(self) -> dict[str, object]:
        """The report as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The report that `to_json` gave."""
        return cls(
            kept=values["kept"],
            kept_unlabelled=values.get("kept_unlabelled", 0),
            dropped=dict(values["dropped"]),
            details=dict(values.get("details", {})),
            unreadable=tuple(values["unreadable"]),
            damaged_sources=tuple(values["damaged_sources"]),
        )


def report_of_drop(sample: "CaptionImage", reason: DropReason) -> FilterReport:
    """The report of one dropped sample: what was found, and its name if a file was at fault."""
    detail = sample.fault_detail if reason is sample.fault else ""
    names = (f"{sample.source}: {sample.key} ({reason.value})",) if reason in NAMED else ()
    return FilterReport(
        dropped={reason.value: 1}, details={f"{reason.value}: {detail}": 1} if detail else {}, unreadable=names
    )


def sum_reports(reports: Iterable[FilterReport]) -> FilterReport:
    """One report over all."""
    return functools.reduce(lambda left, right: left + right, reports, FilterReport())


def damage_report(damage: "SourceDamage") -> FilterReport:
    """A damaged source as a report."""
    return FilterReport(damaged_sources=(str(damage),))


def is_labelled(sample: "CaptionImage") -> bool:
    """Whether anything says that the picture is safe, or not."""
    return sample.nsfw is not None or sample.unsafe_score is not None


def is_unsafe(sample: "CaptionImage", policy: FilterPolicy) -> bool:
    """Whether a label or a score says that the picture is unsafe."""
    has_label = sample.nsfw is not None and sample.nsfw != policy.allowed_nsfw
    return has_label or (sample.unsafe_score is not None and sample.unsafe_score > policy.max_unsafe_score)


def drop_reason(sample: "CaptionImage", policy: FilterPolicy) -> DropReason | None:
    """Why the sample is dropped, as far as known without decoding its picture; None: keep it so far."""
    reason = sample.fault or drop_reason_of_caption(sample.caption, policy) or _drop_reason_of_labels(sample, policy)
    if reason is not None:
        return reason
    if sample.image_bytes is None:
        return DropReason.MISSING_IMAGE
    if sample.original_width and sample.original_height:
        return drop_reason_of_size(sample.original_width, sample.original_height, policy)
    return None


def drop_reason_of_caption(caption: str | None, policy: FilterPolicy) -> DropReason | None:
    """Why a caption, cleaned before, is not one to learn from; None: it is."""
    if caption is None:
        return DropReason.MISSING_CAPTION
    caption = caption.strip()
    if not caption and policy.min_caption_length > 0:
        return DropReason.EMPTY_CAPTION
    if "\n" in caption:
        return DropReason.SEVERAL_LINES
    if len(caption) > policy.max_caption_length:
        return DropReason.LONG_CAPTION
    if caption and not policy.keep_placeholders and (reason := _drop_reason_of_placeholder(caption)):
        return reason
    return DropReason.SHORT_CAPTION if visible_length(caption) < policy.min_caption_length else None


def drop_reason_of_size(width: int, height: int, policy: FilterPolicy) -> DropReason | None:
    """Why a picture of this size is dropped, or None. Sizes in pixels."""
    if min(width, height) < policy.min_side:
        return DropReason.TOO_SMALL
    ratio = max(width, height) / max(1, min(width, height))
    return DropReason.EXTREME_ASPECT_RATIO if ratio > policy.max_aspect_ratio else None


def _drop_reason_of_placeholder(caption: str) -> DropReason | None:
    kinds = (
        (is_url, DropReason.URL_CAPTION),
        (is_written_list, DropReason.LIST_CAPTION),
        (is_file_name, DropReason.FILE_NAME_CAPTION),
        (is_placeholder, DropReason.PLACEHOLDER_CAPTION),
    )
    return next((reason for is_kind, reason in kinds if is_kind(caption)), None)


def _drop_reason_of_labels(sample: "CaptionImage", policy: FilterPolicy) -> DropReason | None:
    if is_unsafe(sample, policy):
        return DropReason.NSFW
    if not policy.keep_unlabelled and not is_labelled(sample):
        return DropReason.UNLABELLED
    if policy.min_similarity is not None and not (
        sample.similarity is not None and sample.similarity >= policy.min_similarity
    ):
        return DropReason.LOW_SIMILARITY
    return None


def _bounded(details: Counter[str]) -> dict[str, int]:
    """The most frequent details by name, the others as one; the total stays the same."""
    ranked = sorted(details.items(), key=lambda item: (item[0] == "others", -item[1], item[0]))
    kept = dict(sorted(ranked[:MOST_DETAILS]))
    others = sum(count for _, count in ranked[MOST_DETAILS:])
    return {**kept, "others": kept.get("others", 0) + others} if others else kept
