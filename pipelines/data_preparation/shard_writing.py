"""Turns sources into a folder of shards, one per fixed span of input; a second run continues where it stopped."""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from hub_tools.checks import check_choice, check_counts
from pipelines.data_preparation.device_encoding import PRECISIONS, Encoders, sub_batch_size
from pipelines.data_preparation.encoding import EncodedSamples, damage_report, encode_samples, sum_reports
from pipelines.data_preparation.filtering import FilterPolicy, FilterReport
from pipelines.data_preparation.pictures.decoding_pool import DecodingPool
from pipelines.data_preparation.pictures.dropped_pictures import FOLDER_NAME, DroppedPictures
from pipelines.data_preparation.pictures.picture_options import DecodingSettings, PictureOptions
from pipelines.data_preparation.preparation_manifest import (
    REPORT_NAME,
    FinishedShard,
    InputPosition,
    PreparationManifest,
    check_same_settings,
    file_digest,
    load_manifest,
    write_json,
)
from pipelines.data_preparation.sources.sample import CaptionImageSource
from pipelines.data_preparation.span_reader import SpanReader
from pipelines.image_codes.image_code_record import ImageCodeLayout, image_code_table, write_image_code_shard
from pipelines.image_codes.vqgan_codec import VQGANCodec


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """How a folder of shards is made."""

    shard_size: int = 8192
    """Samples of input per shard; 8,192 records of 1,024 codes take about 13 MB."""
    batch_size: int | None = None
    """Most pictures in flight on a device; None: what its free memory holds. The result does not depend on it."""
    num_workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Processes that decode, and threads that encode on a CPU. The result does not depend on it."""
    devices: tuple[str, ...] = ()
    """Where the codec runs; none: where it is."""
    precision: str = "float32"
    """Of the codec's network. tf32 and bfloat16 are faster on GPUs; bfloat16 changes half of the codes."""
    policy: FilterPolicy = field(default_factory=FilterPolicy)
    """What is kept."""
    pictures: PictureOptions = field(default_factory=PictureOptions)
    """How pictures become squares."""

    def __post_init__(self) -> None:
        check_counts(self, "shard_size", "batch_size", "num_workers")
        check_choice("precision", self.precision, PRECISIONS)


@dataclass(frozen=True, kw_only=True)
class PreparationProgress:
    """Progress of a preparation."""

    bytes_read: int
    """Bytes of the sources read so far."""
    num_bytes: int
    """Bytes of all sources."""
    num_samples: int
    """Samples filtered so far, including earlier runs."""
    num_new_samples: int
    """Samples filtered by this run."""
    num_shards: int
    """Shards finished."""


@dataclass(frozen=True, kw_only=True)
class PreparationResult:
    """Result of a preparation."""

    report: FilterReport
    """What was kept and dropped, over all shards."""
    shards: tuple[FinishedShard, ...]
    """All shards of the folder."""
    num_shards_kept: int
    """Shards that an earlier run had finished."""


def layout_of(codec: VQGANCodec, options: PreparationOptions) -> ImageCodeLayout:
    """The layout of records that this codec makes with these options."""
    return ImageCodeLayout(
        codec_fingerprint=codec.fingerprint,
        codebook_size=codec.config.codebook_size,
        grid_size=codec.config.grid_size,
        sub_batch_size=sub_batch_size(codec.config),
        precision=options.precision,
        fit=options.pictures.fit,
    )


def prepare_shards(
    sources: Sequence[CaptionImageSource],
    codec: VQGANCodec,
    output: Path,
    options: PreparationOptions,
    on_progress: Callable[[PreparationProgress], None] = lambda progress: None,
) -> PreparationResult:
    """Write `train-00000.parquet`, ... with `manifest.json` and `report.json` into output.

    Stopped at any moment and restarted, it keeps every finished shard and makes the others, byte for byte the same. A
    missing or changed shard is made again. With more sources after the first ones, their shards are added.
    PreparationError if output was started with other settings.
    """
    output.mkdir(parents=True, exist_ok=True)
    layout = layout_of(codec, options)
    settings = _settings(sources, layout, options)
    earlier = load_manifest(output) or PreparationManifest(settings=settings)
    check_same_settings(earlier.settings, settings, output)
    _remove_partial_files(output)
    earlier = PreparationManifest(settings=settings, shards=earlier.shards)
    earlier.save(output)
    with ShardMaker(codec, layout, output, options) as maker:
        shards, num_kept = _make_shards(maker, SpanReader(sources), earlier, on_progress)
    result = PreparationResult(
        report=sum_reports(shard.report for shard in shards), shards=tuple(shards), num_shards_kept=num_kept
    )
    write_json(output / REPORT_NAME, _report_values(result, layout))
    return result


def _make_shards(
    maker: "ShardMaker",
    reader: SpanReader,
    earlier: PreparationManifest,
    on_progress: Callable[[PreparationProgress], None],
) -> tuple[list[FinishedShard], int]:
    shards: list[FinishedShard] = []
    progress = _ProgressCounter(reader, on_progress)
    num_kept = 0
    while not reader.is_at_end():
        number = len(shards)
        known = earlier.shards[number] if number < len(earlier.shards) else None
        if known is not None and known.begin == reader.position and known.is_whole(maker.output):
            reader.skip_to(known.end)
            shards.append(known)
            num_kept += 1
            progress.add_earlier(known.report.seen, len(shards))
            continue
        # A span that was finished before keeps its end: it may have been the last one of fewer sources.
        end = known.end if known is not None and known.begin == reader.position else None
        shards.append(maker.make(number, reader, progress.add, end))
        # Later shards of an earlier run stay listed, so that redoing one shard does not cost the ones after it.
        kept = (*shards, *earlier.shards[len(shards) :])
        PreparationManifest(settings=earlier.settings, shards=kept).save(maker.output)
        progress.add(0, len(shards))
    return shards, num_kept


class _ProgressCounter:
    def __init__(self, reader: SpanReader, on_progress: Callable[[PreparationProgress], None]):
        self.reader, self.on_progress = reader, on_progress
        self.num_samples, self.num_new_samples, self.num_shards = 0, 0, 0
        self.num_bytes = sum(source.num_bytes for source in reader.sources)

    def add_earlier(self, num_samples: int, num_shards: int) -> None:
        """Count a shard of an earlier run."""
        self.num_new_samples -= num_samples
        self.add(num_samples, num_shards)

    def add(self, num_samples: int, num_shards: int | None = None) -> None:
        """Count samples done now."""
        self.num_samples += num_samples
        self.num_new_samples += num_samples
        self.num_shards = self.num_shards if num_shards is None else num_shards
        self.on_progress(
            PreparationProgress(
                bytes_read=self.reader.bytes_read,
                num_bytes=self.num_bytes,
                num_samples=self.num_samples,
                num_new_samples=self.num_new_samples,
                num_shards=self.num_shards,
            )
        )


class ShardMaker:
    """Makes shards with a pool of decoders and the codec on its devices, which live as long as it does."""

    def __init__(self, codec: VQGANCodec, layout: ImageCodeLayout, output: Path, options: PreparationOptions):
        self.layout, self.output, self.shard_size = layout, output, options.shard_size
        settings = DecodingSettings(side=codec.config.image_size, policy=options.policy, options=options.pictures)
        self.pool = DecodingPool(settings, options.num_workers)
        self.encoders = Encoders(
            codec,
            devices=options.devices,
            precision=options.precision,
            num_threads=options.num_workers,
            batch_size=options.batch_size,
        )
        self.dropped = DroppedPictures(output, self.pool)
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._contexts.enter_context(self.pool)
        self._contexts.enter_context(self.encoders)
        return self

    def __exit__(self, *exception: object) -> None:
        self._contexts.close()

    def make(
        self, number: int, reader: SpanReader, on_samples: Callable[[int], None], end: InputPosition | None = None
    ) -> FinishedShard:
        """The next shard of the input, up to `end`, written."""
        begin = reader.position
        self.dropped.begin_shard(number)
        encoded = encode_samples(
            reader.read_span(self.shard_size, end),
            self.pool,
            self.encoders,
            on_samples=on_samples,
            on_drop=self.dropped.keep,
        )
        name = _write(encoded, self.layout, self.output / f"train-{number:05d}.parquet")
        return FinishedShard(
            name=name,
            num_rows=len(encoded.captions),
            num_bytes=(self.output / name).stat().st_size if name else 0,
            sha256=file_digest(self.output / name) if name else "",
            begin=begin,
            end=reader.position,
            report=sum_reports([encoded.report, *map(damage_report, reader.damages)]),
        )


def _write(encoded: EncodedSamples, layout: ImageCodeLayout, path: Path) -> str | None:
    if not encoded.captions:
        return None
    write_image_code_shard(path, image_code_table(encoded.captions, encoded.image_codes, layout, encoded.scalars))
    return path.name


def _settings(
    sources: Sequence[CaptionImageSource], layout: ImageCodeLayout, options: PreparationOptions
) -> dict[str, Any]:
    return {
        **asdict(layout),
        "shard_size": options.shard_size,
        "filter": asdict(options.policy),
        "pictures": asdict(options.pictures),
        "sources": [{"name": source.name, "num_bytes": source.num_bytes} for source in sources],
    }


def _report_values(result: PreparationResult, layout: ImageCodeLayout) -> dict[str, Any]:
    num_bytes = sum(shard.num_bytes for shard in result.shards)
    return {
        **result.report.to_json(),
        "seen": result.report.seen,
        "num_shards": sum(shard.name is not None for shard in result.shards),
        "num_bytes": num_bytes,
        "bytes_per_sample": round(num_bytes / result.report.kept, 1) if result.report.kept else None,
        **asdict(layout),
    }


def _remove_partial_files(output: Path) -> None:
    for leftover in [*output.glob(".*.partial"), *(output / FOLDER_NAME).glob(".*.partial")]:
        leftover.unlink()
