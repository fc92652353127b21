"""Foreign text reaches terminals, logs, pages and cards through `hub_tools.printing` alone."""

import ast
import functools
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.table import Table

from hub_tools.printing.consoles import PrintableConsole, open_progress
from hub_tools.printing.marked_up import code, markdown_table, plain
from hub_tools.printing.printable import PrintableOutput
from hub_tools.printing.stage_progress import stage_progress

ROOT = Path(__file__).parents[1]
BARE = ("Console", "Progress")
ESCAPING = ("html", "xml.sax.saxutils")
OUR_OWN_WORDS = {
    "repository.type", "result.status", "MARKS[result.status]", "WORDS[result.status]", "view.standing.place",
    "machine.name", "one.state", "hole.start", "hole.stop", "ends[0]", "ends[1]",
}  # fmt: skip
"""What stands in HTML as it is: numbers, and words that our own modules list."""

HOSTILE = "eve[/red][link=https://evil.example]x[/link]\x1b[2J\u202e\u200b\x9b"
SHOWN = "eve[/red][link=https://evil.example]x[/link]\ufffd[2J\ufffd"


@functools.lru_cache(maxsize=1)
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(ast.parse(source)))


def calls_of(source: str, *names: str) -> Iterator[ast.Call]:
    """Return the calls of what has one of these names, after any object's."""
    for node in nodes_of(source):
        called = getattr(node, "func", None)
        if isinstance(node, ast.Call) and getattr(called, "attr", getattr(called, "id", "")) in names:
            yield node


def bare_places(source: str) -> list[int]:
    """Return the lines that open a console or bars of rich's own, which obey foreign text."""
    imports = [
        node for node in nodes_of(source) if isinstance(node, ast.ImportFrom) and (node.module or "")[:4] == "rich"
    ]
    bare = {alias.asname or alias.name for node in imports for alias in node.names if alias.name in BARE}
    bare |= {f"rich.{module}.{name}" for module, name in (("console", "Console"), ("progress", "Progress"))}
    names = {name.rpartition(".")[2] for name in bare}
    return [node.lineno for node in calls_of(source, *names) if ast.unparse(node.func) in bare]


def bare_escapes(source: str) -> list[int]:
    """Return the lines that escape HTML by the library, which leaves what hides, reorders or fills a template."""
    imported = [node for node in nodes_of(source) if isinstance(node, ast.ImportFrom) and node.module in ESCAPING]
    called = [
        node for node in calls_of(source, "escape", "quoteattr") if ast.unparse(node.func)[:5] in ("html.", "saxut")
    ]
    return [node.lineno for node in (*imported, *called)]


def bare_exits(source: str) -> list[int]:
    """Return the lines that leave with a message which Python prints as it is."""
    return [
        call.lineno
        for call in calls_of(source, "SystemExit", "exit")
        if (call.args and isinstance(call.args[0], ast.JoinedStr))
        or any(ast.unparse(value).startswith(("str(", "repr(", "error")) for value in call.args)
    ]


def written_ends(source: str) -> list[int]:
    """Return the lines that print several lines at once, which commands show as one."""
    return [
        call.lineno
        for call in calls_of(source, "echo", "print")
        for value in call.args
        if any("\n" in str(getattr(node, "value", "")) for node in ast.walk(value) if isinstance(node, ast.Constant))
        or any(isinstance(node, ast.keyword) and node.arg == "indent" for node in ast.walk(value))
    ]


def bare_fields(source: str) -> list[int]:
    """Return the lines that put a field of something into HTML unescaped."""
    return [
        text.lineno
        for text in nodes_of(source)
        if isinstance(text, ast.JoinedStr)
        and any(isinstance(part, ast.Constant) and re.search(r"</?[a-z]\w*[ >]", part.value) for part in text.values)
        for part in text.values
        if isinstance(part, ast.FormattedValue) and part.format_spec is None
        if isinstance(part.value, ast.Attribute | ast.Subscript) and ast.unparse(part.value) not in OUR_OWN_WORDS
    ]


def bare_markdown(source: str) -> list[int]:
    """Return the lines that put a field of something into Markdown of a page as it is."""
    return [
        call.lineno
        for call in calls_of(source, "Markdown")
        for node in ast.walk(call)
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Attribute | ast.Subscript)
    ]


RULES: dict[Callable[[str], list[int]], tuple[str, str]] = {
    bare_places: ("from rich.console import Console\nConsole()", "hub_tools/printing/consoles.py"),
    bare_escapes: ("import html\nhtml.escape(name)", "hub_tools/printing/marked_up.py"),
    bare_exits: ("\nraise SystemExit(str(error))", ""),
    written_ends: ("\ntyper.echo(f'{a}\\n{b}')", ""),
    bare_fields: ("\nf'<p>{row.name}</p>'", ""),
    bare_markdown: ("\ngr.Markdown(f'# {run.name}')", ""),
}
"""Each rule, with two lines whose second one breaks it, and the only module that may."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_about_printing_finds_what_breaks_it(rule: Callable[[str], list[int]]) -> None:
    assert rule(RULES[rule][0]) == [2]


def test_no_module_prints_foreign_text_by_itself() -> None:
    files = [path for folder in ("hub_tools", "pipelines", "spaces") for path in (ROOT / folder).rglob("*.py")]
    names = {path: str(path.relative_to(ROOT)) for path in files}
    assert not [
        f"{names[path]}:{line} {rule.__name__}"
        for path in files
        for source in [path.read_text()]
        for rule, (_, allowed) in RULES.items()
        if names[path] != allowed
        for line in rule(source)
    ]


FORGED = "eve\nok: all checks passed\r\n\x1b[2J\u2028x"


def test_a_write_of_a_command_is_one_line_and_bars_keep_their_moves() -> None:
    shown = io.StringIO()
    output = PrintableOutput(shown)
    print(FORGED, file=output)
    output.writelines(["a\n", "\n", "b\n\n"])
    assert shown.getvalue().count("\n") == 5
    assert shown.getvalue().startswith("eve ok: all checks passed")
    assert not {"\x1b", "\r", "\u2028"} & set(shown.getvalue())


@pytest.mark.parametrize("place", ["text", "cell", "title", "assembled"])
def test_a_line_end_in_foreign_text_makes_no_line_on_a_console(place: str) -> None:
    from rich.text import Text

    shown = io.StringIO()
    console = PrintableConsole(file=shown, width=120, color_system=None)
    table = Table.grid() if place != "title" else Table(title=FORGED)
    table.add_row(Text(FORGED) if place == "assembled" else FORGED)
    console.print(FORGED if place == "text" else table)
    assert not [line for line in shown.getvalue().splitlines() if line.strip().startswith("ok:")]
    assert "ok: all checks" in shown.getvalue()


PROGRAM = """
import logging, sys, typer
from hub_tools.one_line_errors import run_command_line
app = typer.Typer()
@app.command()
def show():
    name = "eve" + chr(10) + "ok: forged"
    typer.echo(name); print(name, file=sys.stderr); sys.stdout.write(name + chr(10)); logging.getLogger("x").error(name)
    raise ValueError(name)
run_command_line(app, "p")
"""


def test_a_foreign_line_end_forges_no_line_of_a_command() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 1
    assert [line.removeprefix("p: ") for line in lines] == ["eve ok: forged"] * 5


MARKED_UP = "- # [x](https://evil.example) <img src=x> ![y](//z) `a` | $b$ ~~c~~ www.evil.example\n---\n# H"


def _cells() -> Iterator[str]:
    yield plain(MARKED_UP)
    yield code(MARKED_UP)
    yield markdown_table(("", plain(MARKED_UP)), [(code(MARKED_UP), plain(MARKED_UP))])


def test_foreign_text_in_markdown_is_shown_and_not_obeyed() -> None:
    from markdown_it import MarkdownIt

    for text in _cells():
        page = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text)
        assert not re.search(r"<(a|img|h\d|ul|ol|hr|s|em)\b", page), page
        assert "evil.example" in page and page.count("<table>") == text.startswith("|")
        assert not page.count("<td>") % 2


def test_what_a_renderer_links_by_itself_is_broken_up() -> None:
    assert not re.search(r"https?://|www\.|\w@", plain("https://e.example http://e.example WWW.e.example q@e.example"))
    assert [plain(number) for number in (2.5, "2026-11-27")] == ["2.5", "2026-11-27"]
    assert plain("3. birds, 2 * 3") == r"3\. birds, 2 \* 3"


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
        console.print(bar)  # into a pipe it prints a line of long work alone


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
