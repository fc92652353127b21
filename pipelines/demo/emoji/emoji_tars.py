"""Emoji in four styles as captioned webdataset tars: a folder for training, and one for each test."""

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pipelines.demo.emoji.emoji_pairs import (
    COLOURS_TEST,
    STYLES_TEST,
    TONES_TEST,
    TRAIN,
    EmojiPair,
    concepts_of,
    pairs_of,
)
from pipelines.demo.emoji.emoji_sets import STYLES, read_drawings, read_names
from pipelines.demo.scenes.picture_tars import TarPicture, encode_jpeg, write_picture_tars

HELD_OUT_FOLDER = "held_out"
PICTURES_PER_TAR = 2_000
JPEG_QUALITY = 94
STYLE_OF_NAME = {style.name: style for style in STYLES}


@dataclass(frozen=True, kw_only=True)
class EmojiConfig:
    """How the sets are turned into captioned pictures."""

    image_size: int = 64
    """Side of the pictures in pixels, at least 16."""

    held_out_share: float = 0.15
    """Share of the concepts that are held out in one of their styles; from 0 to 0.5."""

    def __post_init__(self) -> None:
        if self.image_size < 16:
            raise ValueError(f"image_size is {self.image_size}; expected at least 16. Pass --image-size 64.")
        if not 0 <= self.held_out_share <= 0.5:
            raise ValueError(f"held_out_share is {self.held_out_share}; expected 0 to 0.5. Pass --held-out-share 0.15.")


@dataclass(frozen=True, kw_only=True)
class EmojiCounts:
    """What was written."""

    pairs: Mapping[str, int]
    """Pairs of each split."""

    concepts: int
    """Different concepts among them."""

    same_picture: int
    """Held-out pairs that were left out, since a picture that is trained on looks the same."""

    unreadable: tuple[str, ...]
    """Captions whose drawing is damaged."""


def write_emoji_tars(
    source: Path, output: Path, config: EmojiConfig, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> EmojiCounts:
    """Write `output/train` and `output/held_out/{styles,skin_tones,colours}` from the folder of `demo emoji-fetch`.

    `on_progress` gets the number of pairs drawn so far and their total.

    Raises:
        FileNotFoundError, ValueError: the folder lacks a set, or has a damaged one.
        OSError: the library that draws SVG is not installed.
    """
    drawings = {style.name: read_drawings(source, style) for style in STYLES}
    pairs = pairs_of(concepts_of(read_names(source)), drawings, config.held_out_share)
    pictures: dict[EmojiPair, bytes] = {}
    for done, pair in enumerate(pairs, 1):
        jpeg = _drawn(drawings[pair.style][pair.concept.hexcode], config.image_size)
        if jpeg is not None:
            pictures[pair] = jpeg
        on_progress(done, len(pairs))
    trained = {(pair.style, jpeg) for pair, jpeg in pictures.items() if pair.split == TRAIN}
    same = {pair for pair, jpeg in pictures.items() if pair.split != TRAIN and (pair.style, jpeg) in trained}
    kept = {pair: jpeg for pair, jpeg in pictures.items() if pair not in same}
    for split in (TRAIN, STYLES_TEST, TONES_TEST, COLOURS_TEST):
        records = _records(kept, split, config.image_size)
        write_picture_tars(split_folder(output, split), records, pictures_per_tar=PICTURES_PER_TAR)
    return EmojiCounts(
        pairs=Counter(pair.split for pair in kept),
        concepts=len({pair.concept for pair in kept}),
        same_picture=len(same),
        unreadable=tuple(pair.caption for pair in pairs if pair not in pictures),
    )


def split_folder(output: Path, split: str) -> Path:
    """Return where the tars of a split are."""
    return output / split if split == TRAIN else output / HELD_OUT_FOLDER / split


def _records(pictures: Mapping[EmojiPair, bytes], split: str, image_size: int) -> Iterator[TarPicture]:
    """Return a split's records in a pseudo-random order that is always the same."""
    for pair in _shuffled(pair for pair in pictures if pair.split == split):
        style = STYLE_OF_NAME[pair.style]
        yield TarPicture(
            jpeg=pictures[pair],
            caption=pair.caption,
            size=(image_size, image_size),
            url=f"pkg:npm/{style.package.replace('@', '%40')}@{style.version}#{pair.concept.hexcode}",
            license=style.license,
            attribution=style.attribution,
        )


def _shuffled(pairs: Iterable[EmojiPair]) -> list[EmojiPair]:
    return sorted(pairs, key=lambda pair: hashlib.sha256(pair.caption.encode()).digest())


def _drawn(svg: str, side: int) -> bytes | None:
    """Return the drawing on white as JPEG, in the middle of a square; None if it is damaged."""
    try:
        drawing = Image.open(io.BytesIO(_png(svg, 2 * side))).convert("RGBA")
    except ValueError:
        return None
    square = Image.new("RGBA", (max(drawing.size),) * 2, "white")
    square.alpha_composite(drawing, tuple((square.width - length) // 2 for length in drawing.size))
    return encode_jpeg(square.convert("RGB").resize((side, side), Image.Resampling.LANCZOS), JPEG_QUALITY)


def _png(svg: str, width: int) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise OSError("resvg_py, which draws the SVG files, is not installed: pip install 'resvg_py>=0.2'") from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, width=width, skip_system_fonts=True))
