"""Tars and files of captioned pictures, whole and dirty, for tests of sources."""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy, drop_reason
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, CaptionImageSource, SourceDamage

JPEG = b"\xff\xd8\xff"
"""A beginning that is taken for a picture; nothing is decoded here."""


def write_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w", **options) -> Path:
    with tarfile.open(path, mode, **options) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def sample_members(key: str, caption: str = "a red star", **fields) -> list[tuple[str, bytes]]:
    metadata = {"NSFW": "UNLIKELY", "similarity": 0.31, "original_width": 640, "original_height": 480, **fields}
    return [
        (f"{key}.jpg", JPEG + f"picture {key}".encode()),
        (f"{key}.txt", caption.encode()),
        (f"{key}.json", json.dumps(metadata).encode()),
    ]


def write_files(folder: Path, contents: dict[str, bytes | str]) -> Path:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def read(source: CaptionImageSource) -> tuple[list[CaptionImage], list[SourceDamage]]:
    """Everything that a source yields, which is the same a second time."""
    found = list(source.samples())
    assert list(source.samples()) == found
    samples = [one for one in found if isinstance(one, CaptionImage)]
    return samples, [one for one in found if isinstance(one, SourceDamage)]


def outcomes(source: CaptionImageSource, policy: FilterPolicy | None = None) -> Counter[str]:
    """How many samples are kept, and dropped by reason, as far as is known without decoding."""
    samples, _ = read(source)
    return Counter(drop_reason(sample, policy or FilterPolicy()) or "kept" for sample in samples)
