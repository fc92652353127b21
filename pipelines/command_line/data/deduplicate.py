"""`dalle-collab data deduplicate`: list pictures that come again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_tools.printing.consoles import open_progress
from pipelines.command_line.data.filter_options import Places, with_filter_options
from pipelines.command_line.data.outcome_table import print_outcomes

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy


@with_filter_options
def deduplicate(
    policy: "FilterPolicy",
    sources: Places,
    output: Annotated[Path, typer.Option(help="Folder of fingerprints and of the list; an unfinished one continues.")],
    distance: Annotated[int, typer.Option(help="Near duplicates differ in at most this many of 124 bits: 0 to 3.")] = 3,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
) -> None:
    """List duplicates and near duplicates over all sources; `data prepare --leave-out` drops them.

    The first one of each is kept. Give the filter that you prepare with: only what it keeps is compared.

    Examples:

      dalle-collab data deduplicate pictures/ --output duplicates

      dalle-collab data prepare pictures/ --codec my-codec --output my-dataset --leave-out duplicates/duplicates.parquet
    """

    from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources

    found = find_sources(sources, policy.reading)
    from pipelines.features.torch_devices import num_cores
    from pipelines.tasks.text_to_image.data_preparation.deduplication.duplicates import LIST_NAME, find_duplicates

    with open_progress(transient=True) as bar:
        task = bar.add_task("fingerprinting", total=len(found))
        report = find_duplicates(
            found,
            output,
            policy,
            distance=distance,
            num_workers=workers or num_cores(),
            on_source=lambda done: bar.update(task, completed=done),
        )
    print_outcomes("compared", report.filtered.kept, report.filtered.dropped)
    for damage in report.filtered.damaged_sources:
        typer.echo(f"Damaged: {damage}", err=True)
    typer.echo(
        f"{output / LIST_NAME}: {report.num_exact} exact and {report.num_near} near duplicates among "
        f"{report.num_compared} pictures"
    )
    if not report.num_compared:
        raise ValueError("There was nothing to compare: no sample was kept, for the reasons above. Mend the sources.")
