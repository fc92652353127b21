"""Scenes as img2dataset-style webdataset tars with LAION's fields, and with the dirt that such tars really have.

A tar holds `KEY.jpg`, `KEY.txt` and `KEY.json` for each picture. About one picture in eleven is dirty in one way, and a
filter after the paper's section 3.2 must drop it; `Dirt` names the ways.
"""

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from PIL import Image

from pipelines.demo.scene_captions import CAPTION_TEMPLATES, caption_of
from pipelines.demo.scenes import ScenesConfig, draw_training_attributes, render_scene, scene_random

_SHORT_CAPTIONS = ("", "a", "ok", ".", "  ")


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
    """How many pictures in all, the dirty ones included; at least 1."""

    seed: int = 0
    """Another seed gives other pictures; the held-out combinations are the same for all seeds."""

    pictures_per_tar: int = 2_000
    """How many pictures one tar holds; from 1 to 10 000 (img2dataset's keys leave four digits for them)."""

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

    scenes: ScenesConfig = field(default_factory=ScenesConfig)
    """How the scenes are drawn."""

    def __post_init__(self) -> None:
        if self.num_pictures < 1:
            raise ValueError(f"num_pictures is {self.num_pictures}; expected at least 1. Pass --num-pictures 16000.")
        if not 1 <= self.pictures_per_tar <= 10_000:
            raise ValueError(f"pictures_per_tar is {self.pictures_per_tar}; expected 1 to 10000.")
        if not 50 <= self.jpeg_quality <= 100:
            raise ValueError(f"jpeg_quality is {self.jpeg_quality}; expected 50 to 100. 94 keeps edges clean.")
        shares = self.dirt_shares.values()
        if min(shares, default=0) < 0 or sum(shares) > 1:
            raise ValueError(f"dirt_shares are {list(shares)}; expected none below 0 and at most 1 together.")


def write_scene_tars(
    output: Path, config: SceneTarsConfig, on_progress: Callable[[int], None] | None = None
) -> Counter[Dirt]:
    """Write `00000.tar`, `00001.tar`, ... into the folder and count the pictures by their dirt.

    Each tar is written under a temporary name and then renamed, so that a tar which is there is whole. `on_progress`
    hears the number of pictures written so far. Raises FileExistsError when the folder holds other tars already.
    """
    output.mkdir(parents=True, exist_ok=True)
    _refuse_other_tars(output, config)
    dirt_counts: Counter[Dirt] = Counter()
    for tar_index, start in enumerate(range(0, config.num_pictures, config.pictures_per_tar)):
        stop = min(start + config.pictures_per_tar, config.num_pictures)
        partial = output / f"{tar_index:05d}.tar.partial"
        with tarfile.open(partial, "w") as tar:
            for index in range(start, stop):
                dirt_counts[_add_picture(tar, index, config)] += 1
                if on_progress is not None:
                    on_progress(index + 1)
        partial.rename(output / f"{tar_index:05d}.tar")
    return dirt_counts


def _refuse_other_tars(output: Path, config: SceneTarsConfig) -> None:
    num_tars = -(-config.num_pictures // config.pictures_per_tar)
    expected = {f"{index:05d}.tar" for index in range(num_tars)}
    others = sorted(path.name for path in output.glob("*.tar") if path.name not in expected)
    if others:
        raise FileExistsError(
            f"{output} already holds {others[0]}, which this run of {num_tars} tars would not write: expected an "
            "empty folder. Pass another --output, or remove the old tars."
        )


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
    attributes = draw_training_attributes(random)
    caption = caption_of(attributes, int(random.integers(len(CAPTION_TEMPLATES))))
    side = config.scenes.image_size
    extreme = ((3 * side, side), (side, 3 * side))[index % 2] if dirt_of(index, config) is Dirt.EXTREME_RATIO else None
    return caption, render_scene(attributes, random, config.scenes, picture_size=extreme)


def _add_picture(tar: tarfile.TarFile, index: int, config: SceneTarsConfig) -> Dirt:
    key = f"{index // config.pictures_per_tar:05d}{index % config.pictures_per_tar:04d}"
    for suffix, content in _picture_files(key, index, config):
        member = tarfile.TarInfo(f"{key}.{suffix}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return dirt_of(index, config)


def _picture_files(key: str, index: int, config: SceneTarsConfig) -> Iterator[tuple[str, bytes]]:
    """The suffix and content of the files that describe one picture."""
    dirt = dirt_of(index, config)
    caption, picture = scene_of(index, config)
    random = scene_random(config.seed, "metadata", index)
    if dirt is Dirt.EMPTY_CAPTION:
        caption = ""
    elif dirt is Dirt.SHORT_CAPTION:
        caption = _SHORT_CAPTIONS[1 + index % (len(_SHORT_CAPTIONS) - 1)]
    jpeg = _jpeg(picture, config.jpeg_quality)
    if dirt is Dirt.CORRUPT:
        jpeg = _corrupted(jpeg, index)
    metadata = _metadata(key, caption, picture.size, jpeg, dirt, random)
    yield "jpg", jpeg
    yield "txt", caption.encode()
    yield "json", json.dumps(metadata).encode()


def _metadata(
    key: str, caption: str, size: tuple[int, int], jpeg: bytes, dirt: Dirt, random: np.random.Generator
) -> dict[str, object]:
    """LAION's and img2dataset's fields of one picture."""
    width, height = size
    return {
        "caption": caption,
        "url": f"https://scenes.invalid/{key}.jpg",
        "key": key,
        "status": "success",
        "error_message": None,
        "width": width,
        "height": height,
        "original_width": width,
        "original_height": height,
        "exif": "{}",
        "sha256": hashlib.sha256(jpeg).hexdigest(),
        "NSFW": str(dirt) if dirt in (Dirt.NSFW, Dirt.UNSURE) else "UNLIKELY",
        "similarity": round(float(random.uniform(0.30, 0.45)), 4),
        "license": "CC0-1.0",
    }


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    # Subsampled chroma would smear a small shape over the neighbouring image codes.
    picture.save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def _corrupted(jpeg: bytes, index: int) -> bytes:
    """The three ways in which files of a crawl are broken: cut off, not a picture at all, empty."""
    return (jpeg[: len(jpeg) // 3], b"<html><body>404 Not Found</body></html>", b"")[index % 3]
