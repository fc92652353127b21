"""Scenes as img2dataset-style webdataset tars with LAION's fields, with the dirt that such tars really have.

A tar holds `KEY.jpg`, `KEY.txt` and `KEY.json` for each picture. About one picture in eleven is dirty in one way, and a
filter after the paper's section 3.2 must drop it; `Dirt` names the ways.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from PIL import Image

from pipelines.tools.demo.scenes.pairs import draw_training_pair, pair_caption, render_pair
from pipelines.tools.demo.scenes.picture_tars import TarPicture, encode_jpeg, write_picture_tars
from pipelines.tools.demo.scenes.scene_captions import caption_of
from pipelines.tools.demo.scenes.scenes import ScenesConfig, draw_training_attributes, render_scene, scene_random

_SHORT_CAPTIONS = ("a", "ok", ".", "  ")


class Dirt(StrEnum):
    """What is wrong with a picture of the tars."""

    NONE = "none"
    EMPTY_CAPTION = "empty caption"
    SHORT_CAPTION = "short caption"
    NSFW = "NSFW"
    UNSURE = "UNSURE"
    EXTREME_RATIO = "extreme ratio"
    CORRUPT = "corrupt picture"


@dataclass(frozen=True, kw_only=True)
class SceneTarsConfig:
    """What is written into a folder of tars. Equal configurations give equal bytes."""

    num_pictures: int = 16_000
    """How many pictures in all, including dirty ones; at least 1."""

    seed: int = 0
    """Another seed gives different pictures; the held-out combinations are the same for all seeds."""

    pictures_per_tar: int = 2_000
    """Pictures per tar; from 1 to 10 000 (img2dataset's keys leave four digits for them)."""

    jpeg_quality: int = 94
    """Quality of the JPEG files, 50 to 100; chroma is not subsampled."""

    dirt_shares: dict[Dirt, float] = field(
        default_factory=lambda: {
            Dirt.EMPTY_CAPTION: 0.01,
            Dirt.SHORT_CAPTION: 0.01,
            Dirt.NSFW: 0.02,
            Dirt.UNSURE: 0.02,
            Dirt.EXTREME_RATIO: 0.02,
            Dirt.CORRUPT: 0.01,
        }
    )
    """The share of pictures dirty in each way; empty for clean tars."""

    pair_share: float = 0.25
    """The share of pictures that show two shapes."""

    scenes: ScenesConfig = field(default_factory=ScenesConfig)
    """How the scenes are drawn."""

    def __post_init__(self) -> None:
        if self.num_pictures < 1:
            raise ValueError(f"num_pictures is {self.num_pictures}; expected at least 1. Pass --num-pictures 16000.")
        if not 1 <= self.pictures_per_tar <= 10_000:
            raise ValueError(f"pictures_per_tar is {self.pictures_per_tar}; expected 1 to 10000.")
        if not 50 <= self.jpeg_quality <= 100:
            raise ValueError(f"jpeg_quality is {self.jpeg_quality}; expected 50 to 100. 94 keeps edges clean.")
        if not 0 <= self.pair_share <= 1:
            raise ValueError(f"pair_share is {self.pair_share}; expected 0 to 1.")
        shares = self.dirt_shares.values()
        if min(shares, default=0) < 0 or sum(shares) > 1:
            raise ValueError(f"dirt_shares are {list(shares)}; expected none below 0 and at most 1 together.")


def write_scene_tars(
    output: Path, config: SceneTarsConfig, on_progress: Callable[[int], None] | None = None
) -> Counter[Dirt]:
    """Write `00000.tar`, `00001.tar`, ... into the folder and count the pictures by their dirt.

    Running it twice does no harm: equal configurations write equal bytes. Raises FileExistsError if the folder has
    other tars.
    """
    dirt_counts = Counter(dirt_of(index, config) for index in range(config.num_pictures))
    pictures = (tar_picture(index, config) for index in range(config.num_pictures))
    write_picture_tars(output, pictures, pictures_per_tar=config.pictures_per_tar, on_progress=on_progress)
    return dirt_counts


def dirt_of(index: int, config: SceneTarsConfig) -> Dirt:
    """What is wrong with the picture of this index."""
    draw = float(scene_random(config.seed, "dirt", index).random())
    for dirt, share in config.dirt_shares.items():
        if draw < share:
            return dirt
        draw -= share
    return Dirt.NONE


def scene_of(index: int, config: SceneTarsConfig) -> tuple[str, Image.Image]:
    """The clean caption and the picture of this index, as drawn, before the caption's and the file's dirt."""
    random = scene_random(config.seed, "scene", index)
    side = config.scenes.image_size
    extreme = ((3 * side, side), (side, 3 * side))[index % 2] if dirt_of(index, config) is Dirt.EXTREME_RATIO else None
    if extreme is None and float(scene_random(config.seed, "pair", index).random()) < config.pair_share:
        pair = draw_training_pair(random)
        return pair_caption(pair), render_pair(pair, random, config.scenes)
    attributes = draw_training_attributes(random)
    return caption_of(attributes), render_scene(attributes, random, config.scenes, picture_size=extreme)


def tar_picture(index: int, config: SceneTarsConfig) -> TarPicture:
    """The picture of this index as stored, with its dirt."""
    dirt = dirt_of(index, config)
    caption, picture = scene_of(index, config)
    jpeg = encode_jpeg(picture, config.jpeg_quality)
    return TarPicture(
        jpeg=_corrupted(jpeg, index) if dirt is Dirt.CORRUPT else jpeg,
        caption=_stored_caption(caption, dirt, index),
        size=picture.size,
        url=f"https://scenes.invalid/{config.seed}/{index}.jpg",
        license="CC0-1.0",
        nsfw=str(dirt) if dirt in (Dirt.NSFW, Dirt.UNSURE) else "UNLIKELY",
        similarity=round(float(scene_random(config.seed, "similarity", index).uniform(0.30, 0.45)), 4),
    )


def _stored_caption(caption: str, dirt: Dirt, index: int) -> str:
    if dirt is Dirt.EMPTY_CAPTION:
        return ""
    return _SHORT_CAPTIONS[index % len(_SHORT_CAPTIONS)] if dirt is Dirt.SHORT_CAPTION else caption


def _corrupted(jpeg: bytes, index: int) -> bytes:
    """The three ways in which files of a crawl are broken: truncated, not a picture at all, empty."""
    return (jpeg[: len(jpeg) // 3], b"<html><body>404 Not Found</body></html>", b"")[index % 3]
