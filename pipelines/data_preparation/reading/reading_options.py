"""How captions and pictures are found in a source: what only their publisher can decide."""

from dataclasses import dataclass

from hub_tools.checks import check_choice

CAPTION_LINES = ("drop", "first", "join")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """The choices that no file can make for its publisher."""

    caption_lines: str = "drop"
    """What a caption of several lines is: drop the sample, take the first line, or join all lines with spaces."""
    caption_column: str | None = None
    """Column or JSON field of captions, before any text file. None: the usual names, in any case."""
    image_column: str | None = None
    """Column of pictures in tables and Hub datasets. None: the usual names, or the only column of pictures."""

    def __post_init__(self) -> None:
        check_choice("caption_lines", self.caption_lines, CAPTION_LINES)
