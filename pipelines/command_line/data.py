"""`dalle-collab data`: turn captioned pictures into shards of image codes, and inspect them."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from pipelines.data_preparation.caption_image_sources import CaptionImageSource
    from pipelines.data_preparation.filtering import FilterReport
    from pipelines.data_preparation.inspection.dataset_facts import DatasetFacts
    from pipelines.data_preparation.shard_writing import PreparationResult

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

MOST_NAMES_SHOWN = 10


@app.command()
def prepare(
    sources: Annotated[list[Path], typer.Argument(help="Webdataset tars, folders of tars or folders of pictures.")],
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
    min_caption_length: Annotated[int, typer.Option(help="Characters in the shortest caption kept.")] = 3,
    max_aspect_ratio: Annotated[float, typer.Option(help="Largest ratio of longer to shorter side kept.")] = 2.0,
    drop_unlabelled: Annotated[
        bool, typer.Option("--drop-unlabelled", help="Drop samples without an NSFW label (for web crawls).")
    ] = False,
) -> None:
    """Filter captioned pictures, encode them and write Brotli Parquet shards.

    Ctrl-C loses no finished shard: the same command resumes, and the shards come out the same to the byte.

    Examples:

      dalle-collab data prepare shards/*.tar --codec my-org/codec --output my-dataset

      dalle-collab data prepare pictures/ --codec my-codec --output my-dataset --shard-size 1024
    """
    from pipelines.data_preparation.caption_image_sources import find_sources
    from pipelines.data_preparation.filtering import FilterPolicy
    from pipelines.data_preparation.pictures.picture_options import PictureOptions

    pictures = PictureOptions(fit=fit, memory_mib=picture_memory)
    found = find_sources(sources)  # before torch is imported, so that a mistyped path is reported at once
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
        policy=FilterPolicy(
            min_caption_length=min_caption_length,
            max_aspect_ratio=max_aspect_ratio,
            keep_unlabelled=not drop_unlabelled,
        ),
    )
    loaded = VQGANCodec.from_pretrained(codec, revision=codec_revision, device=devices[0])
    result = _prepare_with_progress(found, loaded, output, options)
    _print_report(result.report)
    _print_formats_not_read(found)
    _print_shards(result, output)


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
    from rich.table import Table

    from pipelines.command_line.terminal.consoles import open_console

    table = Table("", "samples", "share")
    for name, count in [("kept", report.kept), *report.dropped.items()]:
        table.add_row(name.replace("_", " "), str(count), f"{100 * count / max(1, report.seen):.1f} %")
    open_console().print(table)
    for title, names in (("Unreadable pictures", report.unreadable), ("Damaged sources", report.damaged_sources)):
        if names:
            typer.echo(f"{title} ({len(names)}):")
            for name in names[:MOST_NAMES_SHOWN]:
                typer.echo(f"  {name}")
            if len(names) > MOST_NAMES_SHOWN:
                typer.echo(f"  ... and {len(names) - MOST_NAMES_SHOWN} more, all in report.json")


def _print_formats_not_read(sources: "list[CaptionImageSource]") -> None:
    from pipelines.data_preparation.caption_image_sources import FolderSource

    for source in sources:
        if isinstance(source, FolderSource) and source.not_read:
            counts = ", ".join(f"{count} {suffix}" for suffix, count in sorted(source.not_read.items()))
            typer.echo(f"{source.name}: not read: {counts}. Convert them to PNG, JPEG or WebP to use them.")


def _print_shards(result: "PreparationResult", output: Path) -> None:
    num_bytes = sum(shard.num_bytes for shard in result.shards)
    written = [shard for shard in result.shards if shard.name]
    per_sample = f", {num_bytes / result.report.kept:.0f} bytes per sample" if result.report.kept else ""
    if any((output / "dropped").glob("*.txt")):
        typer.echo(f"Some of what was dropped is in {output / 'dropped'}; `data show` makes a page of it.")
    typer.echo(f"{output}: {len(written)} shards ({result.num_shards_kept} from before), {num_bytes} bytes{per_sample}")
