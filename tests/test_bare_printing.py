"""Foreign text reaches a terminal through `hub_tools.printing` alone."""

import ast
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

from hub_tools.printing.consoles import PrintableConsole, open_progress
from pipelines.stage_progress import stage_progress

ROOT = Path(__file__).parents[1]
BARE = ("Console", "Progress")
HOSTILE = "eve[/red][link=https://evil.example]x[/link]\x1b[2J\u202e\u200b\x9b"
SHOWN = "eve[/red][link=https://evil.example]x[/link]\ufffd[2J\ufffd"


def bare_places(source: str) -> list[int]:
    """Return the lines that open a console or bars of rich's own, which obey foreign text."""
    tree = ast.parse(source)
    imports = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "")[:4] == "rich"
    ]
    bare = {alias.asname or alias.name for node in imports for alias in node.names if alias.name in BARE}
    bare |= {f"rich.{module}.{name}" for module, name in (("console", "Console"), ("progress", "Progress"))}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [node.lineno for node in calls if ast.unparse(node.func) in bare]


def test_consoles_and_bars_are_opened_in_one_place() -> None:
    assert bare_places("from rich.console import Console\nConsole()\nrich.progress.Progress()") == [2, 3]
    files = [path for folder in ("hub_tools", "pipelines", "spaces") for path in (ROOT / folder).rglob("*.py")]
    seen = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if path != ROOT / "hub_tools/printing/consoles.py"
        for line in bare_places(path.read_text())
    ]
    assert not seen


def _table(console: PrintableConsole) -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)


def _status(console: PrintableConsole) -> None:
    with console.status(HOSTILE) as status:
        status.update(HOSTILE)
        console.print(status.renderable)


def _bar(console: PrintableConsole) -> None:
    with open_progress(console=console) as bar:
        bar.add_task(HOSTILE)


def _stages(console: PrintableConsole) -> None:
    with stage_progress(console) as report:
        report(HOSTILE, 1, 1, HOSTILE)


PLACES = dict(line=lambda console: console.print(HOSTILE), table=_table, status=_status, bar=_bar, stages=_stages)


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_name_is_text_wherever_a_console_shows_it(place: str) -> None:
    shown = io.StringIO()
    show: Callable[[PrintableConsole], None] = PLACES[place]
    show(PrintableConsole(file=shown, width=400, color_system=None))
    assert SHOWN in shown.getvalue()
    assert not set("\x1b\u202e\u200b\x9b") & set(shown.getvalue())
