"""How pictures become squares, and how much memory one may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hub_tools.checks import check_choice, check_counts, check_positive
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy

FITS = ("crop", "pad")


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How pictures become squares. Records depend on all of it."""

    fit: str = "crop"
    """`crop`: the central square; `pad`: the whole picture with white bars. Cut-outs are padded in any case."""
    memory_mib: int = 256
    """What decoding one picture may take; a larger one is dropped unread. 256 MiB are 67 million pixels of a coloured
    PNG, 16 million of a WebP or AVIF, any baseline JPEG. Increase for scans; each worker may take as much."""

    cpu_seconds: float = 20.0
    """What decoding one picture may take of a core; a slower one is dropped as `decoding_failed`. The slowest within
    256 MiB take 3; a progressive JPEG of 330 kB, of which 2,000 scans are the same, takes 47."""

    def __post_init__(self) -> None:
        check_choice("fit", self.fit, FITS)
        check_counts(self, "memory_mib")
        check_positive(self, "cpu_seconds")


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """What a decoding process has to know."""

    side: int
    """Pixels of a square's side."""
    policy: FilterPolicy
    """Which sizes are kept."""
    options: PictureOptions
    """How pictures become squares."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The settings that `dataclasses.asdict` gave."""
        return cls(
            side=values["side"],
            policy=FilterPolicy(**values["policy"]),
            options=PictureOptions(**values["options"]),
        )
