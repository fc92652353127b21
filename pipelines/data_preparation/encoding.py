"""Samples to image codes: decode, filter, crop, encode, in batches on all cores, in the order of the samples."""

import collections
import concurrent.futures
import contextlib
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from pipelines.data_preparation.filtering import (
    DropReason,
    FilterPolicy,
    FilterReport,
    drop_reason,
    drop_reason_of_size,
    report_of_drop,
    report_of_kept,
)
from pipelines.data_preparation.sources.sample import CaptionImage, SourceDamage
from pipelines.image_codes.vqgan_codec import VQGANCodec

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP")
BATCHES_AHEAD_PER_WORKER = 2


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
    image_bytes: bytes, image_size: int, policy: FilterPolicy
) -> tuple[np.ndarray, int, int] | DropReason:
    """The picture as a square, (image_size, image_size, 3) uint8, with its original size.

    Like img2dataset's `center_crop`: its central square, the shorter side becomes image_size. Transparent areas become
    white. A cut-out, whose four corners are transparent, is shown whole instead, on white. Returns the drop reason
    instead if the picture cannot be decoded or is too flat.
    """
    try:
        with Image.open(io.BytesIO(image_bytes), formats=PICTURE_FORMATS) as opened:
            width, height = opened.size
            if reason := drop_reason_of_size(width, height, policy):
                return reason
            opened.draft("RGB", (2 * image_size, 2 * image_size))  # JPEGs: decode large pictures at a fraction
            return np.asarray(_squared(opened, image_size)), width, height
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        Image.DecompressionBombError,
    ):  # what Pillow raises on bad files
        return DropReason.CORRUPT_IMAGE


def encode_batch(samples: list[CaptionImage], codec: VQGANCodec, policy: FilterPolicy) -> EncodedSamples:
    """Filter and encode a few samples together."""
    report, kept, pictures = FilterReport(), [], []
    for sample in samples:
        reason = drop_reason(sample, policy)
        decoded = reason or decode_picture(sample.image_bytes, codec.config.image_size, policy)
        if isinstance(decoded, DropReason):
            report += report_of_drop(sample, decoded)
        else:
            picture, width, height = decoded
            pictures.append(picture)
            kept.append((sample, sample.original_width or width, sample.original_height or height))
    return EncodedSamples(
        captions=tuple(sample.caption.strip() for sample, _, _ in kept),
        image_codes=_encode_pictures(pictures, codec),
        scalars=_scalars(kept),
        report=report + report_of_kept(sample for sample, _, _ in kept),
    )


def encode_samples(
    samples: Iterable[CaptionImage],
    codec: VQGANCodec,
    policy: FilterPolicy,
    *,
    batch_size: int,
    num_workers: int,
    on_samples: Callable[[int], None] = lambda num_samples: None,
) -> EncodedSamples:
    """All samples encoded, in their order; `on_samples` gets the number done after each batch.

    Each worker thread takes a whole batch with one torch thread: faster than sharing small convolutions, and the result
    does not depend on the number of workers. At most a few batches per worker are in memory.
    """
    encode = functools.partial(encode_batch, codec=codec, policy=policy)
    parts = []
    with contextlib.closing(_in_order(encode, _batched(samples, batch_size), num_workers)) as encoded_batches:
        for encoded in encoded_batches:
            parts.append(encoded)
            on_samples(encoded.report.seen)
    return _joined(parts, codec.config.num_codes)


def sum_reports(reports: Iterable[FilterReport]) -> FilterReport:
    """One report over all."""
    return functools.reduce(lambda left, right: left + right, reports, FilterReport())


def damage_report(damage: SourceDamage) -> FilterReport:
    """A damaged source as a report."""
    return FilterReport(damaged_sources=(str(damage),))


def _in_order(function: Callable, items: Iterator, num_workers: int) -> Iterator:
    executor = concurrent.futures.ThreadPoolExecutor(
        num_workers, "encoding", initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        pending: collections.deque = collections.deque()
        for item in items:
            pending.append(executor.submit(function, item))
            if len(pending) > BATCHES_AHEAD_PER_WORKER * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _batched(samples: Iterable[CaptionImage], batch_size: int) -> Iterator[list[CaptionImage]]:
    samples = iter(samples)
    while batch := list(itertools.islice(samples, batch_size)):
        yield batch


def on_white(picture: Image.Image) -> Image.Image:
    """The picture as RGB; what was transparent is white."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def _squared(picture: Image.Image, side: int) -> Image.Image:
    if _is_cut_out(picture):
        return ImageOps.pad(on_white(picture), (side, side), Image.Resampling.BICUBIC, color="white")
    return ImageOps.fit(on_white(picture), (side, side), Image.Resampling.BICUBIC)


def _is_cut_out(picture: Image.Image) -> bool:
    """Whether the picture shows something on nothing: cropped, it would lose parts, and white bars cannot be seen."""
    if not picture.has_transparency_data:
        return False
    alpha, right, bottom = picture.convert("RGBA").getchannel("A"), picture.width - 1, picture.height - 1
    return all(alpha.getpixel(corner) == 0 for corner in ((0, 0), (right, 0), (0, bottom), (right, bottom)))


def _encode_pictures(pictures: list[np.ndarray], codec: VQGANCodec) -> np.ndarray:
    if not pictures:
        return np.empty((0, codec.config.num_codes), np.int16)
    device = codec.codebook.device
    images = torch.from_numpy(np.stack(pictures)).to(device).permute(0, 3, 1, 2).float() / 255  # (batch, 3, size, size)
    return codec.encode(images).to("cpu", torch.int16).numpy()


def _scalars(kept: list[tuple[CaptionImage, int, int]]) -> dict[str, tuple[Any, ...]]:
    return {
        "key": tuple(f"{sample.source}/{sample.key}" for sample, _, _ in kept),
        "width": tuple(width for _, width, _ in kept),
        "height": tuple(height for _, _, height in kept),
        "NSFW": tuple(sample.nsfw for sample, _, _ in kept),
        "similarity": tuple(sample.similarity for sample, _, _ in kept),
    }


def _joined(parts: list[EncodedSamples], num_codes: int) -> EncodedSamples:
    codes = [part.image_codes for part in parts]
    return EncodedSamples(
        captions=tuple(itertools.chain.from_iterable(part.captions for part in parts)),
        image_codes=np.concatenate(codes) if codes else np.empty((0, num_codes), np.int16),
        scalars={
            name: tuple(itertools.chain.from_iterable(part.scalars[name] for part in parts))
            for name in ("key", "width", "height", "NSFW", "similarity")
        },
        report=sum_reports(part.report for part in parts),
    )
