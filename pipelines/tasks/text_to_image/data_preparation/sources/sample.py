"""What every source yields, and the interface that every source has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hub_tools.counted import counted
from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason


@dataclass(frozen=True, kw_only=True)
class CaptionImage:
    """One sample as found, before filtering."""

    key: str
    """Name of the sample inside its source; printable, at most 512 characters."""
    source: str
    """Name of its tar or folder."""
    caption: str | None
    """The caption, cleaned; lines that were not joined are separated by newlines. None when there is none."""
    image_bytes: bytes | None
    """The picture's file, None when it is missing."""
    nsfw: str | None = None
    """LAION's NSFW label, None when unknown."""
    unsafe_score: float | None = None
    """Probability of an unsafe picture, None when unknown."""
    similarity: float | None = None
    """LAION's CLIP similarity of caption and picture."""
    original_width: int | None = None
    """Pixels before any resizing; None: as the picture itself."""
    original_height: int | None = None
    """Pixels before any resizing; None: as the picture itself."""
    fault: DropReason | None = None
    """What its source found wrong with it; such a sample is dropped for this reason."""
    fault_detail: str = ""
    """The kind of fault in a word or two, such as the suffix of an unsupported format."""


@dataclass(frozen=True, kw_only=True)
class SourceDamage:
    """A source that ended early: everything before the damage was yielded, the rest is lost."""

    source: str
    """Name of the source."""
    reason: str
    """What was seen."""
    num_samples_read: int
    """Samples yielded before the damage."""

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}; {counted(self.num_samples_read, 'sample')} read, later ones are lost"


class CaptionImageSource(Protocol):
    """Something that yields captioned pictures, in the same order every time.

    A sample that cannot be read is yielded with its fault, so that samples kept and dropped are all that were there.
    """

    name: str
    num_bytes: int
    path: Path | None
    """The file or folder that every machine has to see that reads it; None if there is none."""

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All samples, or those after the first `begin`, of which as little as possible is read.

        A SourceDamage comes after the samples before it: with `begin`, those that come later than all that is left out.
        """
