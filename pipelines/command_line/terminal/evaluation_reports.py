"""Evaluations on the terminal, and where their files are."""

from collections.abc import Sequence
from pathlib import Path

import typer

from hub_tools.counted import counted
from hub_tools.printing.consoles import open_console
from pipelines.features.evaluation.comparison import compare
from pipelines.features.evaluation.report import (
    EvaluationReport,
    comparison_page,
    describe,
    differences_table,
    figures_notes,
    figures_table,
    write_comparison,
    write_report,
)


def show_report(report: EvaluationReport, output: Path, *, as_json: bool) -> None:
    """Write a report and print it, as a table or as JSON."""
    path = write_report(report, output)
    if as_json:
        for line in path.read_text(encoding="utf-8").split("\n"):
            typer.echo(line)
        return
    console = open_console()
    console.print(figures_table(report))
    for note in figures_notes(report):
        console.print(note, highlight=False)
    typer.echo(f"{path}: {counted(len(report.measurement.figures), 'figure')}, in {report.seconds:.0f} s.")


def show_comparison(
    first: EvaluationReport, second: EvaluationReport, prompts: Sequence[str], output: Path, *, as_json: bool
) -> None:
    """Write two reports with their differences, and print the differences, as a table or as JSON."""
    differences = compare(first.measurement, second.measurement)
    names = describe(first), describe(second)
    page = comparison_page(names, prompts, (first.measurement, second.measurement), differences)
    path, page_path = write_comparison(first, second, differences, page, output)
    if as_json:
        for line in path.read_text(encoding="utf-8").split("\n"):
            typer.echo(line)
        return
    open_console().print(differences_table(*names, differences))
    for name, reason in (dict(first.left_out, **second.left_out)).items():
        typer.echo(f"{name} is left out: {reason}")
    typer.echo(f"{path} and {page_path}: {counted(len(differences), 'figure')} compared.")
