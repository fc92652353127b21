"""Datasets of the Hub with a picture and a text column, streamed: nothing is stored."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import datasets
import huggingface_hub
from datasets.exceptions import DatasetsError

from hub_tools.foreign.dataset_opening import opening_dataset
from hub_tools.hub_client import is_outage, is_refusal
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources.file_kinds import LARGEST_PICTURE_BYTES
from pipelines.tasks.text_to_image.data_preparation.sources.picture_columns import find_image_column, sample_of_row
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage, SourceDamage

PLACE = re.compile(r"(?:hub:)?(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?")


@dataclass(frozen=True, kw_only=True)
class HubPlace:
    """A split of a dataset on the Hub, as people write it: `hub:ORG/NAME@REVISION:SPLIT`."""

    repository: str
    revision: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The place that is meant; None if it is none."""
        found = PLACE.fullmatch(text)
        return cls(**found.groupdict()) if found else None


class HubSource:
    """One file of a dataset: a preparation that resumes does not read the files before it again."""

    def __init__(
        self, rows: datasets.IterableDataset, name: str, num_bytes: int, image_column: str, reading: ReadingOptions
    ):
        self.path = None
        self.rows = rows
        self.name = name
        self.num_bytes = num_bytes
        self.image_column = image_column
        self.reading = reading

    def samples(self, begin: int = 0) -> Iterator[CaptionImage | SourceDamage]:
        """All rows from `begin` on. An outage or a refusal of the Hub is raised: the next run resumes."""
        number = begin
        try:
            for row in self.rows.skip(begin) if begin else self.rows:
                picture = row.get(self.image_column)
                if isinstance(picture, dict) and picture.get("bytes") is None and picture.get("path"):
                    picture["bytes"] = _download(picture["path"])
                yield sample_of_row(row, number, self.name, self.image_column, self.reading)
                number += 1
        except (ValueError, TypeError, LookupError, OSError, ArithmeticError, RuntimeError, DatasetsError) as error:
            if is_outage(error) or is_refusal(error):
                raise
            reason = f"damaged ({type(error).__name__}: {str(error)[:200]})"
            yield SourceDamage(source=self.name, reason=reason, num_samples_read=number)


def open_hub_dataset(place: HubPlace, reading: ReadingOptions) -> list[HubSource]:
    """A source for each file of the split, at the commit that the revision has now.

    ValueError if it has no such split or no column of pictures.
    """
    commit = huggingface_hub.HfApi().dataset_info(place.repository, revision=place.revision, expand=["sha"]).sha
    with opening_dataset(place.repository, commit):
        found = datasets.load_dataset(place.repository, revision=commit, streaming=True)
    split = place.split or ("train" if "train" in found else next(iter(found)))
    if split not in found:
        raise ValueError(f"{place.repository} has no split {split!r}. It has: {', '.join(found)}.")
    rows = found[split].decode(False)
    features = rows.features or {name: _kind_of(value) for name, value in next(iter(rows), {}).items()}
    image_column = find_image_column(
        list(features), [name for name, kind in features.items() if _can_hold_pictures(kind)], reading, place.repository
    )
    if image_column is None:
        raise ValueError(
            f"{place.repository} has no column of pictures. Its columns are: {', '.join(features)}. "
            "If one has addresses of pictures, download them: dalle-collab data download"
        )
    num_files = rows.num_shards
    num_bytes = (rows.info.download_size or rows.info.dataset_size or 0) // num_files
    return [
        HubSource(
            rows.shard(num_files, index),
            f"{place.repository}@{commit[:12]}:{split}-{index:05d}-of-{num_files:05d}",
            num_bytes,
            image_column,
            reading,
        )
        for index in range(num_files)
    ]


def _kind_of(value: object) -> Any:
    return datasets.Value("binary") if isinstance(value, bytes) else datasets.Value("string")


def _can_hold_pictures(kind: object) -> bool:
    return isinstance(kind, datasets.Image) or getattr(kind, "dtype", None) in ("binary", "large_binary")


def _download(path: str) -> bytes | None:
    """A picture that lies in the repository beside its table; None if it is elsewhere, or not there."""
    if not path.startswith("hf://"):
        return None
    try:
        with huggingface_hub.HfFileSystem().open(path) as file:
            return file.read(LARGEST_PICTURE_BYTES + 1)
    except OSError as error:
        if is_outage(error) or is_refusal(error):
            raise
        return None
