"""Turns sources into a folder of shards, one per fixed span of input; a second run continues where it stopped."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hub_tools.checks import check_counts
from pipelines.data_preparation.encoding import EncodedSamples, damage_report, encode_samples, sum_reports
from pipelines.data_preparation.filtering import FilterPolicy, FilterReport
from pipelines.data_preparation.preparation_manifest import (
    FinishedShard,
    InputPosition,
    PreparationManifest,
    check_same_settings,
    file_digest,
    load_manifest,
    write_json,
)
from pipelines.data_preparation.sources.sample import CaptionImage, CaptionImageSource, SourceDamage
from pipelines.image_codes.image_code_record import ImageCodeLayout, image_code_table, write_image_code_shard
from pipelines.image_codes.vqgan_codec import VQGANCodec

REPORT_NAME = "report.json"


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """How a folder of shards is made."""

    shard_size: int = 8192
    """Samples of input per shard; 8,192 records of 1,024 codes take about 13 MB."""
    batch_size: int = 64
    """Pictures encoded together. Decrease if memory runs out."""
    num_workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Threads that decode and encode. The result does not depend on it."""
    policy: FilterPolicy = field(default_factory=FilterPolicy)
    """What is kept."""

    def __post_init__(self) -> None:
        check_counts(self, "shard_size", "batch_size", "num_workers")


@dataclass(frozen=True, kw_only=True)
class PreparationProgress:
    """Progress of a preparation."""

    bytes_read: int
    """Bytes of the sources read so far."""
    num_bytes: int
    """Bytes of all sources."""
    num_samples: int
    """Samples filtered so far, including earlier runs."""
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


def layout_of(codec: VQGANCodec) -> ImageCodeLayout:
    """The layout of records that this codec makes."""
    return ImageCodeLayout(
        codec_fingerprint=codec.fingerprint,
        codebook_size=codec.config.codebook_size,
        grid_size=codec.config.grid_size,
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
    missing or changed shard is made again. PreparationError if output was started with other settings.
    """
    output.mkdir(parents=True, exist_ok=True)
    layout = layout_of(codec)
    settings = _settings(sources, layout, options)
    earlier = load_manifest(output) or PreparationManifest(settings=settings)
    check_same_settings(earlier.settings, settings, output)
    _remove_partial_files(output)
    PreparationManifest(settings=settings, shards=earlier.shards).save(output)
    shards: list[FinishedShard] = []
    reader = SpanReader(sources)
    progress = _ProgressCounter(reader, on_progress)
    num_kept = 0
    while not reader.is_at_end():
        number = len(shards)
        known = earlier.shards[number] if number < len(earlier.shards) else None
        if known is not None and known.begin == reader.position and known.is_whole(output):
            reader.skip_to(known.end)
            shards.append(known)
            num_kept += 1
            progress.add(known.report.seen, len(shards))
            continue
        shard = _make_shard(number, reader, codec, layout, output, options, progress.add)
        shards.append(shard)
        # Later shards of an earlier run stay listed, so that redoing one shard does not cost the ones after it.
        PreparationManifest(settings=settings, shards=(*shards, *earlier.shards[len(shards) :])).save(output)
        progress.add(0, len(shards))
    result = PreparationResult(
        report=sum_reports(shard.report for shard in shards), shards=tuple(shards), num_shards_kept=num_kept
    )
    write_json(output / REPORT_NAME, _report_values(result, layout))
    return result


class SpanReader:
    """Reads samples across sources and tracks its position; can resume from any position."""

    def __init__(self, sources: Sequence[CaptionImageSource]):
        self.sources = sources
        self.position = InputPosition()
        self.damages: list[SourceDamage] = []
        self._samples: Iterator[CaptionImage | SourceDamage] | None = None

    def is_at_end(self) -> bool:
        """Whether every source was read to its end."""
        return self.position.source >= len(self.sources)

    @property
    def bytes_read(self) -> int:
        """Bytes of the sources that are fully read."""
        return sum(source.num_bytes for source in self.sources[: self.position.source])

    def skip_to(self, position: InputPosition) -> None:
        """Resume from a position; the sources before it are not opened."""
        self.position, self._samples, self.damages = position, None, []

    def read_span(self, num_samples: int) -> Iterator[CaptionImage]:
        """At most num_samples more samples; damage found on the way is appended to `damages`."""
        self.damages = []
        while num_samples > 0 and not self.is_at_end():
            sample = next(self._open(), None)
            if sample is None:
                self._next_source()
            elif isinstance(sample, SourceDamage):
                self.damages.append(sample)
            else:
                self.position = InputPosition(source=self.position.source, sample=self.position.sample + 1)
                num_samples -= 1
                yield sample

    def _open(self) -> Iterator[CaptionImage | SourceDamage]:
        if self._samples is None:
            self._samples = self.sources[self.position.source].samples()
            for _ in range(self.position.sample):
                next(self._samples, None)
        return self._samples

    def _next_source(self) -> None:
        self.position, self._samples = InputPosition(source=self.position.source + 1), None


class _ProgressCounter:
    def __init__(self, reader: SpanReader, on_progress: Callable[[PreparationProgress], None]):
        self.reader, self.on_progress = reader, on_progress
        self.num_samples, self.num_shards = 0, 0
        self.num_bytes = sum(source.num_bytes for source in reader.sources)

    def add(self, num_samples: int, num_shards: int | None = None) -> None:
        self.num_samples += num_samples
        self.num_shards = self.num_shards if num_shards is None else num_shards
        self.on_progress(
            PreparationProgress(
                bytes_read=self.reader.bytes_read,
                num_bytes=self.num_bytes,
                num_samples=self.num_samples,
                num_shards=self.num_shards,
            )
        )


def _make_shard(
    number: int,
    reader: SpanReader,
    codec: VQGANCodec,
    layout: ImageCodeLayout,
    output: Path,
    options: PreparationOptions,
    on_samples: Callable[[int], None],
) -> FinishedShard:
    begin = reader.position
    encoded = encode_samples(
        reader.read_span(options.shard_size),
        codec,
        options.policy,
        batch_size=options.batch_size,
        num_workers=options.num_workers,
        on_samples=on_samples,
    )
    name = _write(encoded, layout, output / f"train-{number:05d}.parquet")
    return FinishedShard(
        name=name,
        num_rows=len(encoded.captions),
        num_bytes=(output / name).stat().st_size if name else 0,
        sha256=file_digest(output / name) if name else "",
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
        "batch_size": options.batch_size,
        "filter": asdict(options.policy),
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
    for leftover in output.glob(".*.partial"):
        leftover.unlink()
