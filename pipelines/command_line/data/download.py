"""`dalle-collab data download`: the pictures of a list of addresses, as tars."""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_progress
from pipelines.command_line.data.outcome_table import print_outcomes


def download(
    addresses: Annotated[
        Path, typer.Argument(help="List of URLs and captions: Parquet, CSV, TSV, jsonl, or a folder.")
    ],
    output: Annotated[Path, typer.Option(help="Folder of tars; an unfinished one is continued.")],
    part_size: Annotated[int, typer.Option(help="Rows of the list per tar.")] = 10_000,
    caption_column: Annotated[
        str | None, typer.Option(help="Column of captions; default: caption, text, alt_text, ...")
    ] = None,
    at_once: Annotated[int, typer.Option(help="Pictures downloaded at the same time.")] = 32,
    at_once_per_host: Annotated[int, typer.Option(help="Of these, at most so many from one host.")] = 4,
    timeout_seconds: Annotated[float, typer.Option(help="Longest time for one picture.")] = 30.0,
    largest_megabytes: Annotated[
        int, typer.Option(help="Largest picture, in MB; times --at-once it bounds memory.")
    ] = 16,
    user_agent: Annotated[str | None, typer.Option(help="User-Agent header; say in it how to reach you.")] = None,
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
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from pipelines.tasks.text_to_image.data_preparation.downloading.download import DownloadOptions, download_list
    from pipelines.tasks.text_to_image.data_preparation.downloading.fetching import USER_AGENT, FetchingOptions

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
    with open_progress(*columns, transient=True) as bar:
        task = bar.add_task("")
        report = download_list(
            addresses,
            output,
            options,
            lambda done: bar.update(task, description=f"{done.num_downloaded} of {done.num_rows} rows"),
        )
    print_outcomes("downloaded", report.num_downloaded, report.failures)
    for damage in report.damaged_lists:
        typer.echo(f"Damaged: {damage}", err=True)
    typer.echo(f"{output}: {counted(report.num_downloaded, 'picture')} of {counted(report.num_rows, 'row')}")
    if not report.num_downloaded:
        seen = f"{output}/NNNNN_failures.jsonl has the reason for each row" if report.num_rows else "it has no row"
        raise ValueError(
            f"No picture of {addresses} was downloaded: {seen}. Mend the list, or try again with another --output."
        )
