"""Webdataset tars in img2dataset's layout: `KEY.jpg`, `KEY.txt` and `KEY.json` with LAION's fields for each picture."""

import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from hub_tools.atomic_files import written_whole


@dataclass(frozen=True, kw_only=True)
class TarPicture:
    """One picture as a crawler would have stored it."""

    jpeg: bytes
    """The file's bytes; for a corrupt picture they are not a JPEG."""

    caption: str
    """May be empty."""

    size: tuple[int, int]
    """Width and height in pixels."""

    url: str
    """Claimed origin of the picture."""

    license: str
    """Name of the licence, as in SPDX."""

    nsfw: str = "UNLIKELY"
    """LAION's label: UNLIKELY, UNSURE or NSFW."""

    similarity: float = 0.35
    """Cosine between CLIP's embeddings of picture and caption, as LAION gives it."""


def write_picture_tars(
    output: Path,
    pictures: Iterable[TarPicture],
    *,
    pictures_per_tar: int,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write the pictures as `00000.tar`, `00001.tar`, ... and return how many they are.

    Each tar is written under a temporary name and then renamed, so that an existing tar is complete; equal pictures
    give equal bytes. Tars of an earlier, longer run are refused with FileExistsError before anything is lost.
    `on_progress` gets the number of pictures written so far.
    """
    output.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    num_pictures = 0
    for tar_index, chunk in enumerate(_chunks(pictures, pictures_per_tar)):
        name = f"{tar_index:05d}.tar"
        with written_whole(output / name) as temporary, tarfile.open(temporary, "w") as tar:
            for index_in_tar, picture in enumerate(chunk):
                _add_picture(tar, f"{tar_index:05d}{index_in_tar:04d}", picture)
                num_pictures += 1
                if on_progress is not None:
                    on_progress(num_pictures)
        written.add(name)
    _refuse_leftovers(output, written)
    return num_pictures


def encode_jpeg(picture: Image.Image, quality: int) -> bytes:
    """The picture as JPEG without chroma subsampling, which would smear small shapes over neighbouring image codes."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def _chunks(pictures: Iterable[TarPicture], length: int) -> Iterable[Iterable[TarPicture]]:
    iterator = iter(pictures)
    for first in iterator:
        yield itertools.chain([first], itertools.islice(iterator, length - 1))


def _add_picture(tar: tarfile.TarFile, key: str, picture: TarPicture) -> None:
    files = {
        "jpg": picture.jpeg,
        "txt": picture.caption.encode(),
        "json": json.dumps(_metadata(key, picture)).encode(),
    }
    for suffix, content in files.items():
        member = tarfile.TarInfo(f"{key}.{suffix}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def _metadata(key: str, picture: TarPicture) -> dict[str, object]:
    """LAION's and img2dataset's fields of one picture."""
    width, height = picture.size
    return {
        "caption": picture.caption,
        "url": picture.url,
        "key": key,
        "status": "success",
        "error_message": None,
        "width": width,
        "height": height,
        "original_width": width,
        "original_height": height,
        "exif": "{}",
        "sha256": hashlib.sha256(picture.jpeg).hexdigest(),
        "NSFW": picture.nsfw,
        "similarity": picture.similarity,
        "license": picture.license,
    }


def _refuse_leftovers(output: Path, written: set[str]) -> None:
    others = sorted(path.name for path in output.glob("*.tar") if path.name not in written)
    if others:
        raise FileExistsError(
            f"{output} has {len(written)} tars of this run and {others[0]} of another; expected a separate folder. "
            "Remove the other tars, or run again with another --output."
        )
