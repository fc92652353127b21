"""`dalle-collab data`: turn captioned pictures into shards of image codes, and inspect them."""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_progress
from pipelines.command_line.data.deduplicate import deduplicate
from pipelines.command_line.data.download import download
from pipelines.command_line.data.prepare import prepare
from pipelines.command_line.data.show import show

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.")],
) -> None:
    """Read every record of every shard and report what is wrong; exit code 1 if anything is.

    Examples:

      dalle-collab data verify my-dataset
    """

    from pipelines.tasks.text_to_image.data_preparation.inspection.verification import verify_folder

    with open_progress(transient=True) as bar:
        task = bar.add_task("verifying shards", total=None)
        report = verify_folder(folder, lambda done, total: bar.update(task, completed=done, total=total))
    for problem in report.problems:
        typer.echo(problem, err=True)
    typer.echo(
        f"{folder}: {counted(report.num_shards, 'valid shard')}, {counted(report.num_records, 'record')}, "
        f"{report.num_bytes} bytes"
    )
    if report.layout is not None:
        typer.echo(f"codec {report.layout.codec_fingerprint}, {report.layout.codebook_size} codes")
    if report.problems:
        typer.echo(f"Damaged: {counted(len(report.problems), 'shard')}.", err=True)
        raise typer.Exit(1)


def train_tokenizer(
    folder_or_dataset: Annotated[str, typer.Argument(help="Folder of shards or dataset ORG/NAME on the Hub.")],
    output: Annotated[Path, typer.Option(help="Folder of the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Most tokens, including special ones.")] = 4096,
) -> None:
    """Train a small lowercasing tokenizer on a dataset's captions.

    Examples:

      dalle-collab data train-tokenizer my-dataset --vocab-size 512 --output my-tokenizer
    """
    from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import captions_of
    from pipelines.tasks.text_to_image.data_preparation.tokenizer_training import train_tokenizer as train

    tokenizer = train(captions_of(folder_or_dataset), vocab_size)
    tokenizer.save_pretrained(output)
    typer.echo(f"{output}: a tokenizer of {len(tokenizer)} tokens.")


# The help lists them in this order, in which they are needed.
for command in (prepare, download, deduplicate, verify, show, train_tokenizer):
    app.command()(command)
