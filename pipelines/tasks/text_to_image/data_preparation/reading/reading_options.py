"""How captions and pictures are found in a source: what only their publisher can decide."""

from dataclasses import dataclass

from hub_tools.checks import check_choice

CAPTION_LINES = ("drop", "first", "join")
CAPTION_SOURCES = ("files", "name", "folder", "path")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """The choices that no file can make for its publisher."""

    caption_lines: str = "drop"
    """What a caption of several lines is: drop the sample, take the first line, or join all lines with spaces."""
    caption_from: str = "files"
    """Where captions are: in text files, tables and columns, or in the picture's name, its folder's, or both (path)."""
    caption_column: str | None = None
    """Column or JSON field of captions, before any text file. None: the usual names, in any case."""
    image_column: str | None = None
    """Column of pictures in tables and Hub datasets. None: the usual names, or the only column of pictures."""

    def __post_init__(self) -> None:
        check_choice("caption_lines", self.caption_lines, CAPTION_LINES)
        check_choice("caption_from", self.caption_from, CAPTION_SOURCES)
        if self.caption_from != "files" and self.caption_column is not None:
            raise ValueError(
                f"Captions are in names (caption_from is {self.caption_from!r}) or in the column "
                f"{self.caption_column!r}, not in both. Leave one out."
            )
