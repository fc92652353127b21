"""`dalle-collab data prepare`: captioned pictures to shards of image codes."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.command_line.data.filter_options import Places, with_filter_options
from pipelines.command_line.data.outcome_table import print_outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.data_preparation.filtering import FilterPolicy, FilterReport
    from pipelines.data_preparation.shard_writing import PreparationResult
    from pipelines.data_preparation.sources.sample import CaptionImageSource

MOST_NAMES_SHOWN = 10
ADVICE = {
    "several_lines": "--caption-lines first keeps their first line, --caption-lines join all lines",
    "missing_caption": "--caption-column NAME says in which column or JSON field captions are",
    "unsupported_format": "convert these pictures to PNG, JPEG or WebP to use them",
}
"""What to do about samples that were dropped for these reasons."""


@with_filter_options
def prepare(
    policy: "FilterPolicy",
    sources: Places,
    codec: Annotated[str, typer.Option(help="Codec folder or Hub repository ORG/NAME.")],
    output: Annotated[Path, typer.Option(help="Folder of shards; an unfinished one is continued.")],
    codec_revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the codec repository.")] = None,
    shard_size: Annotated[int, typer.Option(help="Input samples per shard.")] = 8192,
    batch_size: Annotated[
        int | None, typer.Option(help="Most pictures in flight on a device; default: what its memory holds.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding processes; default: one per core.")] = None,
    device: Annotated[str, typer.Option(help="Where the codec runs: cpu, cuda, cuda:0,cuda:1 or auto.")] = "cpu",
    precision: Annotated[
        str, typer.Option(help="float32, tf32 or bfloat16; the last changes half of the codes.")
    ] = "float32",
    fit: Annotated[str, typer.Option(help="crop: the central square; pad: all of it, with white bars.")] = "crop",
    picture_memory: Annotated[
        int, typer.Option(help="MiB that decoding a picture may take; larger ones are dropped.")
    ] = 256,
    leave_out: Annotated[
        Path | None, typer.Option(help="List of duplicates to leave out, made by data deduplicate.")
    ] = None,
) -> None:
    """Filter captioned pictures, encode them and write Brotli Parquet shards.

    Ctrl-C loses no finished shard: the same command resumes, and the shards come out the same to the byte.

    Examples:

      dalle-collab data prepare shards/*.tar --codec my-org/codec --output my-dataset

      dalle-collab data prepare pictures/ --codec my-codec --output my-dataset --shard-size 1024

      dalle-collab data prepare hub:my-org/photographs --codec my-codec --output my-dataset --caption-column text
    """
    from pipelines.data_preparation.pictures.picture_options import PictureOptions

    pictures = PictureOptions(fit=fit, memory_mib=picture_memory)
    # Before torch is imported, so that a mistyped path is reported at once.
    found = _find_sources(sources, policy, leave_out)
    from pipelines.data_preparation.shard_writing import PreparationOptions
    from pipelines.image_codes.vqgan_codec import VQGANCodec
    from pipelines.torch_devices import torch_devices

    devices = torch_devices(device)
    options = PreparationOptions(
        shard_size=shard_size,
        batch_size=batch_size,
        num_workers=workers or len(os.sched_getaffinity(0)),
        devices=devices,
        precision=precision,
        pictures=pictures,
        policy=policy,
    )
    loaded = VQGANCodec.from_pretrained(codec, revision=codec_revision, device=devices[0])
    result = _prepare_with_progress(found, loaded, output, options)
    _print_report(result.report)
    _print_advice(result.report)
    _print_shards(result, output)


def _find_sources(places: list[str], policy: "FilterPolicy", leave_out: Path | None) -> "Sequence[CaptionImageSource]":
    from pipelines.data_preparation.sources.finding import find_sources

    found = find_sources(places, policy.reading)
    if leave_out is None:
        return found
    from pipelines.data_preparation.deduplication.duplicates import DuplicatesList, SourceWithoutDuplicates

    duplicates = DuplicatesList(leave_out)
    return [SourceWithoutDuplicates(source, duplicates) for source in found]


def _prepare_with_progress(found: list, codec: object, output: Path, options: object) -> "PreparationResult":
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from pipelines.data_preparation.shard_writing import PreparationProgress, prepare_shards

    columns = (
        TextColumn("encoding"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("opening", total=sum(source.num_bytes for source in found))
        started = time.monotonic()

        def on_progress(progress: PreparationProgress) -> None:
            rate = progress.num_new_samples / max(1e-3, time.monotonic() - started)
            words = f"{progress.num_samples:,} samples, {progress.num_shards:,} shards, {rate:,.0f} pictures/s"
            bar.update(task, completed=progress.bytes_read, description=words)

        try:
            return prepare_shards(found, codec, output, options, on_progress)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("Finished shards are kept. The same command resumes from here.", err=True)
            raise


def _print_report(report: "FilterReport") -> None:
    print_outcomes("kept", report.kept, report.dropped)
    for title, names in (("Unreadable pictures", report.unreadable), ("Damaged sources", report.damaged_sources)):
        if names:
            typer.echo(f"{title} ({len(names)}):")
            for name in names[:MOST_NAMES_SHOWN]:
                typer.echo(f"  {name}")
            if len(names) > MOST_NAMES_SHOWN:
                typer.echo(f"  ... and {len(names) - MOST_NAMES_SHOWN} more, all in report.json")


def _print_advice(report: "FilterReport") -> None:
    for detail, count in report.details.items():
        typer.echo(f"  {count} {detail.replace('_', ' ')}")
    for reason, advice in ADVICE.items():
        if count := report.dropped.get(reason):
            typer.echo(f"{count} dropped for {reason.replace('_', ' ')}: {advice}.")
    if report.kept_unlabelled:
        typer.echo(f"{report.kept_unlabelled} of {report.kept} kept have no NSFW label: --drop-unlabelled drops them.")


def _print_shards(result: "PreparationResult", output: Path) -> None:
    num_bytes = sum(shard.num_bytes for shard in result.shards)
    written = [shard for shard in result.shards if shard.name]
    per_sample = f", {num_bytes / result.report.kept:.0f} bytes per sample" if result.report.kept else ""
    if any((output / "dropped").glob("*.txt")):
        typer.echo(f"Some of what was dropped is in {output / 'dropped'}; `data show` makes a page of it.")
    typer.echo(f"{output}: {len(written)} shards ({result.num_shards_kept} from before), {num_bytes} bytes{per_sample}")
