"""`dalle-collab data`: turn captioned pictures into shards of image codes, and inspect them."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from pipelines.data_preparation.filtering import FilterPolicy, FilterReport
    from pipelines.data_preparation.inspection.dataset_facts import DatasetFacts
    from pipelines.data_preparation.shard_writing import PreparationResult
    from pipelines.data_preparation.sources.sample import CaptionImageSource

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

MOST_NAMES_SHOWN = 10
Places = Annotated[
    list[str], typer.Argument(help="Tars, Parquet files, folders of them or of pictures, or Hub datasets ORG/NAME.")
]
MinCaptionLength = Annotated[int, typer.Option(help="Characters in the shortest caption kept.")]
MaxCaptionLength = Annotated[int, typer.Option(help="Characters in the longest caption kept.")]
KeepPlaceholders = Annotated[
    bool, typer.Option("--keep-placeholders", help="Keep captions such as nan, IMG_2019.jpg, addresses and lists.")
]
MaxAspectRatio = Annotated[float, typer.Option(help="Largest ratio of longer to shorter side kept.")]
MinSide = Annotated[int, typer.Option(help="Pixels of the shorter side of the smallest picture kept.")]
DropUnlabelled = Annotated[
    bool, typer.Option("--drop-unlabelled", help="Drop samples without an NSFW label or score (for web crawls).")
]
MaxUnsafeScore = Annotated[float, typer.Option(help="Highest punsafe kept, where there is one.")]
MinSimilarity = Annotated[
    float | None, typer.Option(help="Lowest similarity of caption and picture kept; drops samples without one.")
]
CaptionLines = Annotated[
    str, typer.Option(help="A caption of several lines: drop the sample, take the first line, or join the lines.")
]
CaptionColumn = Annotated[
    str | None, typer.Option(help="Column or JSON field of captions; default: caption, text, alt_text, ...")
]
ImageColumn = Annotated[
    str | None, typer.Option(help="Column of pictures in Parquet and Hub datasets; default: image, jpg, ...")
]
ADVICE = {
    "several_lines": "--caption-lines first keeps their first line, --caption-lines join all lines",
    "missing_caption": "--caption-column NAME says in which column or JSON field captions are",
    "unsupported_format": "convert these pictures to PNG, JPEG or WebP to use them",
}
"""What to do about samples that were dropped for these reasons."""


@app.command()
def prepare(
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
    min_caption_length: MinCaptionLength = 3,
    max_caption_length: MaxCaptionLength = 2000,
    keep_placeholders: KeepPlaceholders = False,
    max_aspect_ratio: MaxAspectRatio = 2.0,
    min_side: MinSide = 1,
    drop_unlabelled: DropUnlabelled = False,
    max_unsafe_score: MaxUnsafeScore = 0.5,
    min_similarity: MinSimilarity = None,
    caption_lines: CaptionLines = "drop",
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
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
    policy = _policy(
        min_caption_length=min_caption_length,
        max_caption_length=max_caption_length,
        keep_placeholders=keep_placeholders,
        max_aspect_ratio=max_aspect_ratio,
        min_side=min_side,
        keep_unlabelled=not drop_unlabelled,
        max_unsafe_score=max_unsafe_score,
        min_similarity=min_similarity,
        reading=dict(caption_lines=caption_lines, caption_column=caption_column, image_column=image_column),
    )
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


@app.command()
def download(
    addresses: Annotated[
        Path, typer.Argument(help="List of URLs and captions: Parquet, CSV, TSV, jsonl, or a folder.")
    ],
    output: Annotated[Path, typer.Option(help="Folder of tars; an unfinished one is continued.")],
    part_size: Annotated[int, typer.Option(help="Rows of the list per tar.")] = 10_000,
    caption_column: Annotated[
        str | None, typer.Option(help="Column of captions; default: caption, text, alt_text, ...")
    ] = None,
    at_once: Annotated[int, typer.Option(help="Pictures on their way at the same time.")] = 32,
    at_once_per_host: Annotated[int, typer.Option(help="Of these, from one host.")] = 4,
    timeout_seconds: Annotated[float, typer.Option(help="For one picture.")] = 30.0,
    largest_megabytes: Annotated[int, typer.Option(help="Of the largest picture; times --at-once bounds memory.")] = 16,
    user_agent: Annotated[str | None, typer.Option(help="How servers see you; say how to reach you.")] = None,
    allow_private_addresses: Annotated[
        bool, typer.Option("--allow-private-addresses", help="Fetch from your own network too.")
    ] = False,
) -> None:
    """Download the pictures of a list into tars that `data prepare` reads.

    Pictures whose servers say `X-Robots-Tag: noai` or `TDM-Reservation: 1` are left alone. What fails for a passing
    reason is tried a second time. Ctrl-C loses no finished tar: the same command continues.

    Examples:

      dalle-collab data download laion.parquet --output pictures

      dalle-collab data prepare pictures --codec my-codec --output my-dataset --drop-unlabelled
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from pipelines.data_preparation.downloading.download import DownloadOptions, download_list
    from pipelines.data_preparation.downloading.fetching import USER_AGENT, FetchingOptions

    options = DownloadOptions(
        part_size=part_size,
        caption_column=caption_column,
        fetching=FetchingOptions(
            num_at_once=at_once,
            num_at_once_per_host=at_once_per_host,
            timeout_seconds=timeout_seconds,
            largest_bytes=largest_megabytes * 2**20,
            user_agent=user_agent or USER_AGENT,
            allow_private=allow_private_addresses,
        ),
    )
    columns = (SpinnerColumn(), TextColumn("downloading {task.description}"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("")
        report = download_list(
            addresses,
            output,
            options,
            lambda done: bar.update(task, description=f"{done.num_downloaded} of {done.num_rows} rows"),
        )
    _print_counts("downloaded", report.num_downloaded, report.failures)
    for damage in report.damaged_lists:
        typer.echo(f"Damaged: {damage}", err=True)
    typer.echo(f"{output}: {report.num_downloaded} pictures of {report.num_rows} rows")


@app.command()
def deduplicate(
    sources: Places,
    output: Annotated[Path, typer.Option(help="Folder of fingerprints and of the list; an unfinished one continues.")],
    distance: Annotated[int, typer.Option(help="Bits of 124 in which near duplicates differ at most: 0 to 3.")] = 3,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    min_caption_length: MinCaptionLength = 3,
    max_caption_length: MaxCaptionLength = 2000,
    keep_placeholders: KeepPlaceholders = False,
    max_aspect_ratio: MaxAspectRatio = 2.0,
    min_side: MinSide = 1,
    drop_unlabelled: DropUnlabelled = False,
    max_unsafe_score: MaxUnsafeScore = 0.5,
    min_similarity: MinSimilarity = None,
    caption_lines: CaptionLines = "drop",
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
) -> None:
    """List pictures that come again, the same or nearly, over all sources; `data prepare --leave-out` drops them.

    The first one of each is kept. Give the filter that you prepare with: only what it keeps is compared.

    Examples:

      dalle-collab data deduplicate pictures/ --output duplicates

      dalle-collab data prepare pictures/ --codec my-codec --output my-dataset --leave-out duplicates/duplicates.parquet
    """
    from rich.progress import Progress

    policy = _policy(
        min_caption_length=min_caption_length,
        max_caption_length=max_caption_length,
        keep_placeholders=keep_placeholders,
        max_aspect_ratio=max_aspect_ratio,
        min_side=min_side,
        keep_unlabelled=not drop_unlabelled,
        max_unsafe_score=max_unsafe_score,
        min_similarity=min_similarity,
        reading=dict(caption_lines=caption_lines, caption_column=caption_column, image_column=image_column),
    )
    found = _find_sources(sources, policy)
    from pipelines.data_preparation.deduplication.duplicates import LIST_NAME, find_duplicates

    with Progress(transient=True) as bar:
        task = bar.add_task("fingerprinting", total=len(found))
        report = find_duplicates(
            found,
            output,
            policy,
            distance=distance,
            num_workers=workers or len(os.sched_getaffinity(0)),
            on_source=lambda done: bar.update(task, completed=done),
        )
    typer.echo(
        f"{output / LIST_NAME}: {report.num_exact} exact and {report.num_near} near duplicates among "
        f"{report.num_compared} pictures"
    )


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.")],
) -> None:
    """Read every record of every shard and report what is wrong; exit code 1 if anything is.

    Examples:

      dalle-collab data verify my-dataset
    """
    from rich.progress import Progress

    from pipelines.data_preparation.inspection.verification import verify_folder

    with Progress(transient=True) as bar:
        task = bar.add_task("verifying shards", total=None)
        report = verify_folder(folder, lambda done, total: bar.update(task, completed=done, total=total))
    for problem in report.problems:
        typer.echo(problem, err=True)
    typer.echo(f"{folder}: {report.num_shards} valid shards, {report.num_records} records, {report.num_bytes} bytes")
    if report.layout is not None:
        typer.echo(f"codec {report.layout.codec_fingerprint}, {report.layout.codebook_size} codes")
    if report.problems:
        typer.echo(f"{len(report.problems)} shards are damaged.", err=True)
        raise typer.Exit(1)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.")],
    codec: Annotated[str, typer.Option(help="Codec folder or Hub repository ORG/NAME.")],
    output: Annotated[
        Path, typer.Option(help="Picture to write; a page of the same name with .html lies beside it.")
    ] = Path("grid.png"),
    num_records: Annotated[int, typer.Option(help="Records to show, spread over the folder.")] = 24,
) -> None:
    """Decode some records, to see what the model will see, and write a page about the dataset.

    The page is one file: pictures, codes, captions, what is cut off, what was dropped and why.

    Examples:

      dalle-collab data show my-dataset --codec my-codec --output grid.png
    """
    import torch

    from pipelines.data_preparation.inspection.record_sampling import spread_records
    from pipelines.image_codes.picture_grid import picture_grid
    from pipelines.image_codes.vqgan_codec import VQGANCodec

    loaded = VQGANCodec.from_pretrained(codec)
    captions, image_codes = spread_records(folder, num_records, codec_fingerprint=loaded.fingerprint)
    pictures = loaded.decode(torch.from_numpy(image_codes).long())
    output.parent.mkdir(parents=True, exist_ok=True)
    picture_grid(pictures, columns=6, captions=captions).save(output)
    page = output.with_suffix(".html")
    facts = _write_page(page, folder, captions, pictures)
    typer.echo(f"{output}: {len(captions)} records of {folder}. A page about all of it: {page}")
    if facts.layout.fit != "pad":
        typer.echo(f"Cropping cut off {100 * facts.mean_cut_share:.1f} % of a picture's area on average.")


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="Folder of shards.")],
    new: Annotated[Path, typer.Argument(help="Folder of shards of another version.")],
) -> None:
    """Compare two versions of a dataset, record by record: added, removed, other captions, other codes.

    Exit code 1 if they differ. Memory stays bounded; a temporary file takes about the size of the keys.

    Examples:

      dalle-collab data diff my-dataset my-dataset-v2
    """
    from rich.progress import Progress

    from pipelines.data_preparation.inspection.dataset_diff import compare_datasets

    with Progress(transient=True) as bar:
        task = bar.add_task("comparing shards", total=None)
        found = compare_datasets(old, new, lambda done, total: bar.update(task, completed=done, total=total))
    typer.echo(
        f"{old}: {found.num_old:,} records. {new}: {found.num_new:,}. {found.num_same_shards:,} shards are equal."
    )
    for kind, number in found.counts.items():
        keys = found.examples[kind]
        shown = f": {', '.join(keys)}{', ...' if number > len(keys) else ''}" if keys else ""
        typer.echo(f"{kind}: {number:,}{shown}")
    if any(found.counts.values()):
        raise typer.Exit(1)


@app.command("train-tokenizer")
def train_tokenizer_command(
    folder_or_dataset: Annotated[str, typer.Argument(help="Folder of shards or dataset ORG/NAME on the Hub.")],
    output: Annotated[Path, typer.Option(help="Folder of the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Most tokens, including special ones.")] = 4096,
) -> None:
    """Train a small lowercasing tokenizer on a dataset's captions.

    Examples:

      dalle-collab data train-tokenizer my-dataset --vocab-size 512 --output my-tokenizer
    """
    from pipelines.data_preparation.tokenizer_training import captions_of, train_tokenizer

    tokenizer = train_tokenizer(captions_of(folder_or_dataset), vocab_size)
    tokenizer.save_pretrained(output)
    typer.echo(f"{output}: a tokenizer of {len(tokenizer)} tokens.")


def _policy(*, reading: dict[str, str | None], **limits: Any) -> "FilterPolicy":
    from pipelines.data_preparation.filtering import FilterPolicy
    from pipelines.data_preparation.reading.reading_options import ReadingOptions

    return FilterPolicy(**limits, reading=ReadingOptions(**reading))


def _find_sources(
    places: list[str], policy: "FilterPolicy", leave_out: Path | None = None
) -> "Sequence[CaptionImageSource]":
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


def _write_page(path: Path, folder: Path, captions: list[str], pictures: "torch.Tensor") -> "DatasetFacts":
    """Write the dataset's page, return its figures. pictures: (picture, 3, side, side) in [0, 1]."""
    import numpy as np
    from rich.progress import Progress

    from hub_tools.atomic_files import write_text_whole
    from pipelines.data_preparation.inspection.dataset_facts import collect_facts
    from pipelines.data_preparation.pictures.dropped_pictures import read_dropped_pictures
    from pipelines.data_preparation.preparation_manifest import load_manifest, load_report
    from pipelines.pages.dataset.dataset_page import DatasetPage, dataset_page

    with Progress(transient=True) as bar:
        task = bar.add_task("counting", total=None)
        facts = collect_facts(folder, lambda done, total: bar.update(task, completed=done, total=total))
    manifest = load_manifest(folder)
    page = DatasetPage(
        name=folder.resolve().name,
        facts=facts,
        pictures=(pictures.permute(0, 2, 3, 1).cpu().numpy() * 255 + 0.5).astype(np.uint8),
        captions=captions,
        report=load_report(folder),
        settings=manifest.settings if manifest else None,
        dropped=read_dropped_pictures(folder),
    )
    write_text_whole(path, dataset_page(page))
    return facts


def _print_report(report: "FilterReport") -> None:
    _print_counts("kept", report.kept, report.dropped)
    for title, names in (("Unreadable pictures", report.unreadable), ("Damaged sources", report.damaged_sources)):
        if names:
            typer.echo(f"{title} ({len(names)}):")
            for name in names[:MOST_NAMES_SHOWN]:
                typer.echo(f"  {name}")
            if len(names) > MOST_NAMES_SHOWN:
                typer.echo(f"  ... and {len(names) - MOST_NAMES_SHOWN} more, all in report.json")


def _print_counts(success: str, num_successes: int, others: "Mapping[str, int]") -> None:
    from rich.table import Table

    from pipelines.command_line.terminal.consoles import open_console

    table = Table("", "samples", "share")
    num_samples = num_successes + sum(others.values())
    for name, count in [(success, num_successes), *others.items()]:
        table.add_row(name.replace("_", " "), str(count), f"{100 * count / max(1, num_samples):.1f} %")
    open_console().print(table)


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
