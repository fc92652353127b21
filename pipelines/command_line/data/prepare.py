"""`dalle-collab data prepare`: captioned pictures to shards of image codes."""

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_progress
from hub_tools.printing.printable import one_line
from pipelines.command_line.data.engine_options import EngineChoice, EngineName, PartName
from pipelines.command_line.data.filter_options import Places, with_filter_options
from pipelines.command_line.data.outcome_table import print_outcomes
from pipelines.command_line.jobs.job_options import (
    DryRun,
    JobHours,
    JobPackage,
    JobRequest,
    OnJobs,
    check_reachable,
    run_as_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy, FilterReport
    from pipelines.tasks.text_to_image.data_preparation.shard_writing import (
        Preparation,
        PreparationProgress,
        PreparationResult,
    )
    from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImageSource

MOST_NAMES_SHOWN = 10
ADVICE = {
    "several_lines": "--caption-lines first keeps their first line, --caption-lines join all lines",
    "missing_caption": "--caption-from name (or folder) reads the words in the names of files (or of their folders); "
    "else each picture wants a text beside it, robin.txt for robin.jpg, or a table, captions.csv with the columns "
    "file_name and caption; --caption-column NAME names another column or JSON field",
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
    engine: EngineName = "local",
    part: PartName = None,
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
    on_jobs: OnJobs = None,
    job_hours: JobHours = None,
    job_package: JobPackage = None,
    job_publish: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="With --on-jobs: publish the shards as this dataset.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Filter captioned pictures, encode them and write Brotli Parquet shards.

    Ctrl-C loses no finished shard: the same command resumes, and the shards come out the same to the byte.

    Examples:

      dalle-collab data prepare shards/*.tar --codec my-org/codec --output my-dataset

      dalle-collab data prepare pictures/ --codec my-codec --output my-dataset --shard-size 1024

      dalle-collab data prepare pictures/ --codec my-codec --output my-dataset --caption-from folder

      dalle-collab data prepare hub:my-org/photographs --codec my-codec --output my-dataset --caption-column text

      dalle-collab data prepare /shared/tars --codec my-codec --output /shared/my-dataset --part 3/8

      dalle-collab data prepare hub:my-org/photos --codec my-org/f8 --output x --on-jobs l4x1 --job-publish my-org/x
    """
    request = JobRequest(flavor=on_jobs, hours=job_hours, package=job_package, dry_run=dry_run)
    if request.is_wanted():
        local = {place: Path(place).exists() for place in (*sources, codec)}
        check_reachable({**local, "--leave-out": leave_out}, "a Job sees what is on the Hub only, such as hub:ORG/NAME")
        check_reachable({"--part": part, "--engine": engine != "local"}, "a Job prepares the whole by itself")
        if job_publish is None:
            raise ValueError("The shards are lost at the Job's end. Say where they go: --job-publish ORG/NAME")
        afterwards = [["hub-tools", "publish", "dataset", str(output), job_publish]]
        run_as_job(request, "data-prepare", afterwards=afterwards)
        return
    if job_publish is not None:
        raise ValueError("--job-publish is for Jobs only. Name their hardware too: --on-jobs t4-small")
    from pipelines.tasks.text_to_image.data_preparation.pictures.picture_options import PictureOptions

    if codec_revision is not None and Path(codec).is_dir():
        raise ValueError(f"Codec {codec} is a folder and has no revisions. Leave out --codec-revision.")
    pictures = PictureOptions(fit=fit, memory_mib=picture_memory)
    # Before torch is imported, so that a mistake is reported at once.
    how = EngineChoice.parse(engine, part, device)
    found = _find_sources(sources, policy, leave_out)
    from pipelines.features.torch_devices import num_cores, torch_devices
    from pipelines.tasks.text_to_image.data_preparation.shard_writing import Preparation, PreparationOptions
    from pipelines.tasks.text_to_image.image_codes.codec_code import open_codec

    # What hands out work to a cluster needs no GPU.
    devices = torch_devices(device) if how.name == "local" else (device,)
    options = PreparationOptions(
        shard_size=shard_size,
        batch_size=batch_size,
        num_workers=workers or num_cores(),
        devices=devices,
        precision=precision,
        pictures=pictures,
        policy=policy,
    )
    device_here = devices[0] if how.name == "local" else "cpu"
    loaded = open_codec(codec, revision=codec_revision, device=device_here)
    _print_preview(found, output)
    preparation = Preparation(sources=found, codec=loaded, output=output.absolute(), options=options)
    result = _prepare_with_progress(preparation, how, workers)
    if result is None:
        return
    _print_report(result.report)
    _print_advice(result.report)
    _print_shards(result, output)
    if not result.report.kept:
        raise ValueError(
            f"Nothing of {counted(result.report.seen, 'sample')} was kept, for the reasons above. Mend the sources, or "
            "choose other options and another --output."
        )


def _find_sources(places: list[str], policy: "FilterPolicy", leave_out: Path | None) -> "Sequence[CaptionImageSource]":
    from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

    # A worker on another machine is in another folder.
    found = find_sources(
        [Path(place).absolute() if Path(place).exists() else place for place in places], policy.reading
    )
    if leave_out is None:
        return found
    from pipelines.tasks.text_to_image.data_preparation.deduplication.duplicates import (
        DuplicatesList,
        SourceWithoutDuplicates,
    )

    duplicates = DuplicatesList(leave_out)
    return [SourceWithoutDuplicates(source, duplicates) for source in found]


def _print_preview(sources: "Sequence[CaptionImageSource]", output: Path) -> None:
    """Show the first captions of a folder before hours of encoding, unless an earlier call has shown them."""
    from pipelines.tasks.text_to_image.data_preparation.sources.folder_source import FolderSource
    from pipelines.tasks.text_to_image.data_preparation.sources.sample import CaptionImage

    if output.exists():
        return
    samples = (sample for source in sources if isinstance(source, FolderSource) for sample in source.samples())
    for sample in itertools.islice(samples, MOST_NAMES_SHOWN):
        if isinstance(sample, CaptionImage):
            typer.echo(one_line(f"{sample.key}: {sample.caption or 'no caption'}"))


def _prepare_with_progress(
    preparation: "Preparation", how: EngineChoice, workers: int | None
) -> "PreparationResult | None":
    """The result, or None if other parts are missing."""
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationProgress

    columns = (
        TextColumn("encoding"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with open_progress(*columns) as bar:
        task = bar.add_task("opening", total=sum(source.num_bytes for source in preparation.sources))
        started = time.monotonic()

        def on_progress(progress: PreparationProgress) -> None:
            rate = progress.num_new_samples / max(1e-3, time.monotonic() - started)
            words = f"{progress.num_samples:,} samples, {counted(progress.num_shards, 'shard')}, {rate:,.0f} pictures/s"
            bar.update(task, completed=progress.bytes_read, description=words)

        try:
            return _prepare(preparation, how, workers, on_progress)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("Finished shards are kept. The same command resumes from here.", err=True)
            raise


def _prepare(
    preparation: "Preparation",
    how: EngineChoice,
    workers: int | None,
    on_progress: "Callable[[PreparationProgress], None]",
) -> "PreparationResult | None":
    if how.name == "ray":
        from pipelines.tasks.text_to_image.data_preparation.engines.ray_engine import prepare_with_ray

        return prepare_with_ray(preparation, address=how.address, num_workers=workers, on_progress=on_progress)
    if how.part is not None:
        from pipelines.tasks.text_to_image.data_preparation.engines.part_preparation import prepare_part

        done = prepare_part(preparation, how.part, on_progress=on_progress)
        typer.echo(f"Part {how.part}: {counted(done.num_shards, 'shard')} finished.")
        if done.missing:
            typer.echo(
                f"Missing: {counted(len(done.missing), 'shard')} of other parts, such as "
                f"{done.missing[0].describe(preparation.sources)}. The last part to end puts {preparation.output} "
                "together; if all have ended, run those again that failed, or the same command without --part."
            )
        return done.whole
    from pipelines.tasks.text_to_image.data_preparation.shard_writing import prepare_shards

    return prepare_shards(preparation.sources, preparation.codec, preparation.output, preparation.options, on_progress)


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
    shards = f"{counted(len(written), 'shard')} ({result.num_shards_kept} from before)"
    typer.echo(f"{output}: {shards}, {num_bytes} bytes{per_sample}")
