"""What the emoji demo has found out, for people: a table, and a picture of true and drawn emoji side by side."""

from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw
from rich.console import Group, RenderableType
from rich.table import Table

from pipelines.demo.emoji.emoji_judge import QUESTIONS, Judgement, Score
from pipelines.demo.emoji.emoji_pairs import SEPARATOR
from pipelines.generation.picture_grid import font_for
from pipelines.image_codes.thumbnails import enlarged

HEADINGS = {
    "style": "style",
    "what": "who or what",
    "attribute": "tone or colour",
    "concept": "whole concept",
    "both": "concept and style",
}
SIDE, GAP, MARGIN, LINE = 96, 8, 14, 22
FRAME = (200, 30, 30)


def judgement_table(judgements: Sequence[Judgement]) -> Table:
    """Return the shares of right answers with their 95 % intervals, and in brackets what chance would give."""
    table = Table(title="What the most similar of all true pictures is called: right, (95 % interval), by chance")
    table.add_column("captions", overflow="fold")
    table.add_column("of", justify="right")
    for question in QUESTIONS:
        table.add_column(HEADINGS[question], justify="right", overflow="fold")
    for judgement in judgements:
        cells = [_cell(judgement.scores.get(question)) for question in QUESTIONS]
        table.add_row(judgement.group, str(judgement.scores["both"].of), *cells)
    return table


def _cell(score: Score | None) -> RenderableType:
    if score is None:
        return "–"
    return Group(f"{score.share:.0%} ({score.low:.0%}–{score.high:.0%})", f"by chance {score.chance:.2g}")


def side_by_side(
    concepts: Sequence[str],
    styles: Sequence[str],
    true: Mapping[str, Image.Image],
    drawn: Mapping[str, Image.Image],
    held_out: frozenset[str],
) -> Image.Image:
    """Return a row for each concept: its true pictures on the left, the drawn ones on the right, a style a column.

    true, drawn: caption -> picture; a style that lacks a concept leaves its place empty. What was held out has a frame.
    """
    half = len(styles) * (SIDE + GAP)
    width, height = 2 * MARGIN + 2 * half + 2 * GAP, SIDE + LINE + GAP
    picture = Image.new("RGB", (width, 3 * LINE + len(concepts) * height + MARGIN), "white")
    draw = ImageDraw.Draw(picture)
    for offset, title in ((0, "True pictures"), (half + 2 * GAP, "Drawn by the model")):
        _write(draw, (MARGIN + offset, MARGIN // 2), f"{title} (in a frame: never trained on)", 15)
        for column, style in enumerate(styles):
            _write(draw, (MARGIN + offset + column * (SIDE + GAP), MARGIN // 2 + LINE), style, 13)
    for row, concept in enumerate(concepts):
        top = 3 * LINE + row * height
        _write(draw, (MARGIN, top - 4), concept, 13)
        for offset, pictures in ((0, true), (half + 2 * GAP, drawn)):
            for column, style in enumerate(styles):
                caption = f"{concept}{SEPARATOR}{style}"
                if caption in pictures:
                    left, upper = MARGIN + offset + column * (SIDE + GAP), top + LINE - 6
                    picture.paste(enlarged(pictures[caption], SIDE), (left, upper))
                    if caption in held_out:
                        draw.rectangle((left - 2, upper - 2, left + SIDE + 1, upper + SIDE + 1), outline=FRAME, width=2)
    return picture


def _write(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, size: int) -> None:
    draw.text(corner, text, font=font_for(text, size), fill=(20, 20, 20))
