"""Turns sources into a folder of shards, one per fixed span of input; a second run continues where it stopped."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hub_tools.checks import check_choice, check_counts
from pipelines.features.torch_devices import num_cores
from pipelines.tasks.text_to_image.data_preparation.device_encoding import PRECISIONS, sub_batch_size
from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy, FilterReport, sum_reports
from pipelines.tasks.text_to_image.data_preparation.pictures.dropped_pictures import FOLDER_NAME, keep_first_dropped
from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import PictureOptions
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import (
    REPORT_NAME,
    FinishedShard,
    PreparationManifest,
    check_same_settings,
    load_manifest,
    write_json,
)
from pipelines.tasks.text_to_image.data_preparation.shard_maker import ShardMaker
from pipelines.tasks.text_to_image.data_preparation.shard_records import load_all_records, remove_records
from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImageSource
from pipelines.tasks.text_to_image.data_preparation.span_reader import SpanReader
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout
from pipelines.tasks.text_to_image.image_codes.vqgan_codec import VQGANCodec


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """How a folder of shards is made."""

    shard_size: int = 8192
    """Samples of input per shard; 8,192 records of 1,024 codes take about 13 MB."""
    batch_size: int | None = None
    """Most pictures in flight on a device; None: what its free memory holds. The result does not depend on it."""
    num_workers: int = field(default_factory=num_cores)
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


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is prepared, with which codec, to where and how: all that a worker has to know."""

    sources: Sequence[CaptionImageSource]
    """In their order."""
    codec: VQGANCodec
    """It makes the image codes."""
    output: Path
    """The folder of shards."""
    options: PreparationOptions
    """How shards are made."""

    def layout(self) -> ImageCodeLayout:
        """The layout of records."""
        return layout_of(self.codec, self.options)

    def settings(self) -> dict[str, object]:
        """What determines every byte of the shards."""
        return {
            **asdict(self.layout()),
            "shard_size": self.options.shard_size,
            "filter": asdict(self.options.policy),
            "pictures": asdict(self.options.pictures),
            "sources": [{"name": source.name, "num_bytes": source.num_bytes} for source in self.sources],
        }

    def shard_maker(self) -> ShardMaker:
        """What makes the shards; it starts its processes when it is needed."""
        return ShardMaker(self.codec, self.layout(), self.output, self.options)


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
    missing or changed shard is made again. With more sources after the first ones, their shards are added. Nobody else
    may write to output. PreparationError if output was started with other settings.
    """
    preparation = Preparation(sources=sources, codec=codec, output=output, options=options)
    known = begin_preparation(preparation)
    remove_leftovers(output, ".*.partial")
    return finish_preparation(preparation, {**known, **load_all_records(output)}, on_progress)


def begin_preparation(preparation: Preparation) -> dict[int, FinishedShard]:
    """Create the folder, or check that it was started with the same settings; return the shards in its manifest."""
    output, settings = preparation.output, preparation.settings()
    output.mkdir(parents=True, exist_ok=True)
    earlier = load_manifest(output)
    if earlier is not None:
        check_same_settings(earlier.settings, settings, output)
    if earlier is None or earlier.settings != settings:
        PreparationManifest(settings=settings, shards=earlier.shards if earlier else ()).save(output)
    return dict(enumerate(earlier.shards)) if earlier else {}


def finish_preparation(
    preparation: Preparation,
    known: Mapping[int, FinishedShard],
    on_progress: Callable[[PreparationProgress], None] = lambda progress: None,
) -> PreparationResult:
    """Keep the known shards, by number, make all that are missing or changed, and write manifest and report."""
    output = preparation.output
    with contextlib.ExitStack() as stack:
        # Only if a shard is missing: the machine that puts together what others have made may lack their GPU.
        maker = functools.cache(lambda: stack.enter_context(preparation.shard_maker()))
        shards, num_kept = _make_shards(maker, preparation, known, on_progress)
    keep_first_dropped(output)
    result = PreparationResult(
        report=sum_reports(shard.report for shard in shards), shards=tuple(shards), num_shards_kept=num_kept
    )
    write_json(output / REPORT_NAME, _report_values(result, preparation.layout()))
    remove_records(output)
    return result


def remove_leftovers(output: Path, pattern: str) -> None:
    """Remove what processes left that were killed while they wrote; nobody may be writing what the pattern matches."""
    for leftover in [*output.glob(pattern), *(output / FOLDER_NAME).glob(".*.partial")]:
        leftover.unlink(missing_ok=True)


def _make_shards(
    maker: Callable[[], ShardMaker],
    preparation: Preparation,
    known: Mapping[int, FinishedShard],
    on_progress: Callable[[PreparationProgress], None],
) -> tuple[list[FinishedShard], int]:
    shards: list[FinishedShard] = []
    reader = SpanReader(preparation.sources)
    progress = ProgressCounter(reader, on_progress)
    settings = preparation.settings()
    num_kept = 0
    while not reader.is_at_end():
        number = len(shards)
        earlier = known.get(number)
        if earlier is not None and earlier.begin == reader.position and earlier.is_whole(preparation.output):
            reader.skip_to(earlier.end)
            shards.append(earlier)
            num_kept += 1
            progress.add_earlier(earlier.report.seen, len(shards))
            continue
        # A span that was finished before keeps its end: it may have been the last one of fewer sources.
        end = earlier.end if earlier is not None and earlier.begin == reader.position else None
        shards.append(maker().make(number, reader, progress.add, end))
        # Later shards of an earlier run stay listed, so that redoing one shard does not cost the ones after it.
        later = itertools.takewhile(lambda number: number in known, itertools.count(len(shards)))
        listed = (*shards, *(known[number] for number in later))
        PreparationManifest(settings=settings, shards=listed).save(preparation.output)
        progress.add(0, len(shards))
    PreparationManifest(settings=settings, shards=tuple(shards)).save(preparation.output)
    return shards, num_kept


class ProgressCounter:
    """Counts what is done and tells it on."""

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


def _report_values(result: PreparationResult, layout: ImageCodeLayout) -> dict[str, object]:
    num_bytes = sum(shard.num_bytes for shard in result.shards)
    return {
        **result.report.to_json(),
        "seen": result.report.seen,
        "num_shards": sum(shard.name is not None for shard in result.shards),
        "num_bytes": num_bytes,
        "bytes_per_sample": round(num_bytes / result.report.kept, 1) if result.report.kept else None,
        **asdict(layout),
    }
