"""`dalle-collab run report`: all about a run, in one file."""

from pathlib import Path
from typing import Annotated

import typer

from hub_tools.printing.consoles import open_console
from pipelines.command_line.terminal.setting_options import Run


def report(
    repository: Run,
    output: Annotated[Path, typer.Option(help="Markdown file to write; the loss curve is saved next to it.")],
) -> None:
    """Write a run's report: all settings, progress, contributors' hours, data, checkpoints, traffic in bytes.

    Everything is read from the Hub; what was never published is listed as missing.

    Examples:

      dalle-collab run report my-org/birds --output report.md
    """
    import time

    from hub_tools.atomic_files import write_text_whole
    from pipelines.features.publishing.metrics.loss_curve import draw_loss_curve
    from pipelines.features.publishing.metrics.report import report_markdown
    from pipelines.features.publishing.metrics.run_archive import gather_archive

    with open_console(stderr=True).status(f"reading {repository}"):
        now = time.time()
        record = gather_archive(repository, now)
        picture = output.with_name(f"{output.stem}_loss_curve.png") if record.history else None
        output.parent.mkdir(parents=True, exist_ok=True)
        if picture is not None:
            draw_loss_curve(record.history, picture, record.evaluations)
    text = report_markdown(record, loss_curve=picture.name if picture else None, now=now)
    write_text_whole(output, text)
    typer.echo(f"Wrote {output}" + (f" and {picture}." if picture else "; the run has no history yet."))
