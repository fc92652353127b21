"""What a volunteer has given to a run, as a picture to share: it stays when the volunteer's machine is gone."""

import io
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from hub_tools.printing.printable import one_line
from pipelines.features.publishing.metrics.credit.standing import Standing
from pipelines.tools.pages.joining.run_profile import RunProfile

SIZE, MARGIN, SQUARE = (1200, 630), 60, 510
"""Pixels: what pages that show a link expect of its picture; at the right is room for the run's newest pictures."""

PAPER, INK, PALE, ACCENT = "#14122b", "#ffffff", "#b8b5d9", "#a5b4fc"


LONGEST, SMALLEST = 40, 11
"""Characters of a line, and pixels of its letters: so many of the widest have room beside the pictures."""


@dataclass(frozen=True, kw_only=True)
class VolunteerCard:
    """The card of one user."""

    profile: RunProfile
    username: str
    """A user's name, or nothing for a volunteer without one."""

    samples: int
    unit: str = "samples"
    standing: Standing | None = None

    @property
    def sentence(self) -> str:
        """The card in words."""
        return f"{self.username or 'A volunteer'} gave {self.samples:,} {self.unit} to {self.profile.repository}"

    def png(self) -> bytes:
        """Return the picture."""
        card = Image.new("RGB", SIZE, PAPER)
        width = SIZE[0] - 2 * MARGIN
        if self.profile.picture is not None:
            self._paste(card, self.profile.picture)
            width -= SQUARE + MARGIN // 2
        draw, top = ImageDraw.Draw(card), 110
        lines = [
            (self.username or "A volunteer", 76, INK),
            ("gave", 34, PALE),
            (f"{self.samples:,} {self.unit}", 64, ACCENT),
            (f"to {self.profile.repository}", 40, INK),
        ]
        if self.standing is not None:
            lines.append((f"place {self.standing.place:,} of {self.standing.num_contributors:,}", 34, PALE))
        for whole, size, colour in lines:
            text = one_line(whole, LONGEST)
            font = _fitting(text, size, width)
            draw.text((MARGIN, top), text, fill=colour, font=font)
            top += round(1.45 * size)
        draw.text(
            (MARGIN, SIZE[1] - 85), "Volunteers train this model together", fill=PALE, font=_fitting("", 26, width)
        )
        content = io.BytesIO()
        card.save(content, format="PNG", optimize=True)
        return content.getvalue()

    @staticmethod
    def _paste(card: Image.Image, picture: Image.Image) -> None:
        scale = SQUARE / max(picture.size)
        drawn = picture.resize((max(1, round(scale * picture.width)), max(1, round(scale * picture.height))))
        left = SIZE[0] - MARGIN - SQUARE + (SQUARE - drawn.width) // 2
        card.paste(drawn, (left, (SIZE[1] - drawn.height) // 2))


def _fitting(text: str, size: int, width: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font, smaller where the text would be wider than so many pixels."""
    font = ImageFont.load_default(size)
    while font.getlength(text) > width and size > SMALLEST:
        size -= 1
        font = ImageFont.load_default(size)
    return font
