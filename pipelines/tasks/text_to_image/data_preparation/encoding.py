"""Samples to image codes: filtered and decoded by processes, encoded in sub-batches, in the order of the samples."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.tasks.text_to_image.data_preparation.device_encoding import Encoders
from pipelines.tasks.text_to_image.data_preparation.filtering import (
    DropReason,
    FilterPolicy,
    FilterReport,
    is_labelled,
    report_of_drop,
    sum_reports,
)
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding import square_picture
from pipelines.tasks.text_to_image.data_preparation.pictures.decoding_pool import DecodingPool
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import PictureOptions
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

SCALARS = ("key", "width", "height", "NSFW", "similarity")


@dataclass(frozen=True, kw_only=True)
class EncodedSamples:
    """Records made from some samples, and a report on the others."""

    captions: tuple[str, ...] = ()
    """Captions of the kept samples."""
    image_codes: np.ndarray
    """(num_records, num_codes) int16."""
    scalars: dict[str, tuple] = field(default_factory=dict)
    """Columns besides captions and codes."""
    report: FilterReport = field(default_factory=FilterReport)
    """What was kept and dropped."""


def decode_picture(
    image_bytes: bytes, image_size: int, policy: FilterPolicy, options: PictureOptions | None = None
) -> tuple[np.ndarray, int, int] | DropReason:
    """The picture as a square, (image_size, image_size, 3) uint8, with its size, decoded in this process; else why not.

    Hostile pictures may end the process: `DecodingPool` is for those.
    """
    squared = square_picture(image_bytes, image_size, policy, options or PictureOptions())
    if isinstance(squared, DropReason):
        return squared
    return _pixels(squared.pixels, image_size), squared.width, squared.height


def encode_samples(
    samples: Iterable[CaptionImage],
    pool: DecodingPool,
    encoders: Encoders,
    *,
    on_samples: Callable[[int], None] = lambda num_samples: None,
    on_drop: Callable[[CaptionImage, DropReason], None] = lambda sample, reason: None,
) -> EncodedSamples:
    """All samples encoded, in their order; `on_samples` gets the number done now and then.

    The result depends neither on the number of workers nor on what is in flight.
    """
    collected = _Collected()
    pictures = collected.pictures(pool.decoded(samples), pool.settings.side, on_drop)
    codes = []
    for encoded in encoders.encoded(_batched(pictures, encoders.sub_batch_size)):
        codes.append(encoded)
        on_samples(collected.take_num_new())
    on_samples(collected.take_num_new())
    return EncodedSamples(
        captions=tuple(collected.captions),
        image_codes=np.concatenate(codes) if codes else np.empty((0, encoders.codec.config.num_codes), np.int16),
        scalars={name: tuple(values) for name, values in collected.scalars.items()},
        report=sum_reports([*collected.drops, collected.report_of_kept()]),
    )


class _Collected:
    """What is known of the samples when their pictures go to the encoder."""

    def __init__(self) -> None:
        self.captions: list[str] = []
        self.scalars: dict[str, list[object]] = {name: [] for name in SCALARS}
        self.drops: list[FilterReport] = []
        self._num_new = self._num_unlabelled = 0

    def report_of_kept(self) -> FilterReport:
        """The report of the samples that were kept."""
        return FilterReport(kept=len(self.captions), kept_unlabelled=self._num_unlabelled)

    def take_num_new(self) -> int:
        """The number of samples since the last call."""
        num_new, self._num_new = self._num_new, 0
        return num_new

    def pictures(
        self,
        decoded: Iterable[tuple[CaptionImage, Any]],
        side: int,
        on_drop: Callable[[CaptionImage, DropReason], None],
    ) -> Iterator[np.ndarray]:
        for sample, squared in decoded:
            self._num_new += 1
            if isinstance(squared, DropReason):
                self.drops.append(report_of_drop(sample, squared))
                on_drop(sample, squared)
                continue
            self._add(sample, sample.original_width or squared.width, sample.original_height or squared.height)
            yield _pixels(squared.pixels, side)

    def _add(self, sample: CaptionImage, width: int, height: int) -> None:
        self.captions.append((sample.caption or "").strip())
        self._num_unlabelled += not is_labelled(sample)
        values = (f"{sample.source}/{sample.key}", width, height, sample.nsfw, sample.similarity)
        for name, value in zip(SCALARS, values, strict=True):
            self.scalars[name].append(value)


def _pixels(pixels: bytes, side: int) -> np.ndarray:
    return np.frombuffer(pixels, np.uint8).reshape(side, side, 3)


def _batched(pictures: Iterator[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    while batch := list(itertools.islice(pictures, size)):
        yield batch
