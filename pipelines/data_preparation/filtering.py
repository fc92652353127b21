"""Which samples are kept, and why the others are dropped. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from pipelines.data_preparation.caption_image_sources import CaptionImage


class DropReason(StrEnum):
    """Why a sample is not in the dataset."""

    SHORT_CAPTION = "short_caption"
    NSFW = "nsfw"
    EXTREME_ASPECT_RATIO = "extreme_aspect_ratio"
    MISSING_IMAGE = "missing_image"
    CORRUPT_IMAGE = "corrupt_image"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TOO_MANY_PIXELS = "too_many_pixels"
    DECODING_FAILED = "decoding_failed"


PICTURE_FAULTS = frozenset(
    {
        DropReason.MISSING_IMAGE,
        DropReason.CORRUPT_IMAGE,
        DropReason.UNSUPPORTED_FORMAT,
        DropReason.TOO_MANY_PIXELS,
        DropReason.DECODING_FAILED,
    }
)
"""Reasons for which a sample is named in the report, so that somebody can mend it."""


@dataclass(frozen=True, kw_only=True)
class FilterPolicy:
    """The filter. The defaults are the original run's: they dropped about a tenth of LAION."""

    min_caption_length: int = 3
    """Characters in the shortest caption kept."""
    max_aspect_ratio: float = 2.0
    """Largest ratio of longer to shorter side kept."""
    allowed_nsfw: str = "UNLIKELY"
    """The NSFW label to keep."""
    keep_unlabelled: bool = True
    """Whether samples without an NSFW label are kept. Own pictures seldom have one; in a crawl drop them."""

    def __post_init__(self) -> None:
        if self.min_caption_length < 0:
            raise ValueError(f"min_caption_length is {self.min_caption_length}, expected 0 or more.")
        if not self.max_aspect_ratio >= 1:
            raise ValueError(f"max_aspect_ratio is {self.max_aspect_ratio}, expected 1 or more (a square has 1).")


@dataclass(frozen=True, kw_only=True)
class FilterReport:
    """What was kept and what was dropped; reports of parts add up."""

    kept: int = 0
    """Samples kept."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Samples dropped, by DropReason."""
    unreadable: tuple[str, ...] = ()
    """Names of samples whose picture was missing or corrupt."""
    damaged_sources: tuple[str, ...] = ()
    """Sources that ended early, and what was lost."""

    @property
    def seen(self) -> int:
        """All samples filtered."""
        return self.kept + sum(self.dropped.values())

    def __add__(self, other: "FilterReport") -> "FilterReport":
        counts = Counter(self.dropped) + Counter(other.dropped)
        return FilterReport(
            kept=self.kept + other.kept,
            dropped={reason.value: counts[reason] for reason in DropReason if counts[reason]},
            unreadable=self.unreadable + other.unreadable,
            damaged_sources=self.damaged_sources + other.damaged_sources,
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The report that `to_json` gave."""
        return cls(
            kept=values["kept"],
            dropped=dict(values["dropped"]),
            unreadable=tuple(values["unreadable"]),
            damaged_sources=tuple(values["damaged_sources"]),
        )


def report_of_drop(sample: CaptionImage, reason: DropReason) -> FilterReport:
    """The report of one dropped sample, with its name if the picture was at fault."""
    at_fault = reason in PICTURE_FAULTS
    names = (f"{sample.source}: {sample.key} ({reason.value})",) if at_fault else ()
    return FilterReport(dropped={reason.value: 1}, unreadable=names)


def drop_reason(sample: CaptionImage, policy: FilterPolicy) -> DropReason | None:
    """Why the sample is dropped, as far as known without decoding its picture; None: keep it so far."""
    if len((sample.caption or "").strip()) < policy.min_caption_length:
        return DropReason.SHORT_CAPTION
    if not policy.keep_unlabelled if sample.nsfw is None else sample.nsfw != policy.allowed_nsfw:
        return DropReason.NSFW
    if sample.image_bytes is None:
        return DropReason.MISSING_IMAGE
    if sample.original_width and sample.original_height:
        return drop_reason_of_size(sample.original_width, sample.original_height, policy)
    return None


def drop_reason_of_size(width: int, height: int, policy: FilterPolicy) -> DropReason | None:
    """Why a picture of this size is dropped, or None. Sizes in pixels."""
    ratio = max(width, height) / max(1, min(width, height))
    return DropReason.EXTREME_ASPECT_RATIO if ratio > policy.max_aspect_ratio else None
