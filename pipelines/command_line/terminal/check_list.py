"""A list of findings on the terminal, or as JSON for programs; used by `doctor` and by `run check`."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from pipelines.command_line.terminal.peer_events import EventFile

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.tools.doctor.check_result import CheckResult

MARKS = {
    "ok": "[green]ok[/green]",
    "unknown": "[blue]?[/blue]",
    "warn": "[yellow]warning[/yellow]",
    "fail": "[bold red]FAIL[/bold red]",
}


def show_checks(
    title: str,
    make_checks: Callable[[Callable[[str], None]], "Iterator[CheckResult]"],
    *,
    as_json: bool,
    strict: bool,
    events: EventFile,
) -> None:
    """Run the checks, print the findings and exit with the matching code.

    `make_checks` gets a function to call with the name of the next check; `events` gets that, and each finding.
    """
    from hub_tools.printing.consoles import open_console
    from pipelines.tools.doctor.check_result import exit_code

    console = open_console(stderr=as_json)
    results = []
    with console.status(title) as status:

        def announce(name: str) -> None:
            status.update(f"checking {name}")
            events.happened("looking", at=name)

        for result in make_checks(announce):
            results.append(result)
            events.happened("finding", **result.as_mapping())
            if not as_json:
                _print_result(console, result)
    code = exit_code(results, strict=strict)
    if as_json:
        found = [result.as_mapping() for result in results]
        for line in json.dumps(dict(title=title, exit_code=code, results=found), indent=1).split("\n"):
            typer.echo(line)
    else:
        console.print(_summary(results), markup=True)
    raise typer.Exit(code)


def report_obstacles(console: "Console", repository: str, results: "Iterable[CheckResult]") -> None:
    """Print a line for each finding that warns or fails, and nothing if all is well.

    Raises:
        ValueError: one of them makes training impossible.
    """
    from pipelines.tools.doctor.examination import is_certain

    for result in results:
        if is_certain(result):
            raise ValueError(f"{result.line()} See all checks: dalle-collab doctor {repository}")
        if result.status in ("warn", "fail"):
            console.print(result.line(), style="yellow", markup=False, highlight=False)


def _print_result(console: "Console", result: "CheckResult") -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1))
    line.add_column(width=7)
    line.add_column(overflow="fold")
    line.add_row(Text.from_markup(MARKS[result.status]), Text.assemble((result.name, "bold"), f": {result.seen}"))
    console.print(line)
    if result.status in ("warn", "fail"):
        if result.expected:
            console.print(Padding(f"expected: {result.expected}", (0, 0, 0, 8)), highlight=False)
        console.print(Padding(f"cure: {result.cure}", (0, 0, 0, 8)), highlight=False)


def _summary(results: "list[CheckResult]") -> str:
    counts = {status: sum(result.status == status for result in results) for status in MARKS}
    if counts["fail"]:
        return f"[bold red]{counts['fail']} of {len(results)} checks failed.[/bold red]"
    if counts["warn"]:
        return f"No check failed; {counts['warn']} of {len(results)} gave a warning."
    return f"[green]No problems found ({len(results)} checks).[/green]"
