"""Foreign text on terminals, in logs and on pages."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from hub_tools.one_line_errors import explain_error
from hub_tools.printing.consoles import PrintableConsole
from hub_tools.printing.marked_up import escaped
from hub_tools.printing.printable import MOST_MARKS, UNKNOWN, one_line, printable, printable_json
from pipelines.command_line.terminal.consoles import OneLineFormatter

TOWER = "\u0301" * 50
HOSTILE = (
    "a\x1b[2J\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\\x9b31m\x07\b\r\u202eb\u2066c\u200bd\u200de" + TOWER
    + "\U000e0041\ue000\ud800\u2028\x85\u115f\ufeff\x00z"
)  # fmt: skip
FORBIDDEN = set("\x1b\x9b\x07\b\r\u202e\u2066\u200b\u200d\U000e0041\ue000\ud800\u2028\x85\u115f\ufeff\x00")
HOSTILE_LINES = HOSTILE + "\nforged\trow"


def is_harmless(text):
    return not FORBIDDEN & set(text) and text.count("\u0301") <= MOST_MARKS


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f469\U0001f3fd\u200d\u2764\ufe0f\u200d\U0001f468",
        "1\ufe0f\u20e3 \U0001f3f4\u200d\u2620\ufe0f",
        "\u0645\u0631\u062d\u0628\u0627 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u06dd\u0661",
        "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
        "\u0915\u094d\u200d\u0937 Vie\u0323\u0302t \u65e5\u672c\u8a9e",
    ],
)  # fmt: skip
def test_texts_of_all_scripts_and_emoji_stay_as_they_are(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x1b[1mb", f"a{UNKNOWN}[1mb"), ("a\u202eb", "ab"), ("a\tb\nc", "a b c")]
)
def test_what_acts_on_a_terminal_is_marked_and_what_hides_is_dropped(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("show", [
    printable, one_line, escaped, lambda text: explain_error(ValueError(text)),
    lambda text: OneLineFormatter().format(__import__("logging").makeLogRecord(dict(msg=text, levelname="INFO"))),
])  # fmt: skip
def test_one_hostile_text_is_harmless_wherever_it_is_shown(show):
    assert is_harmless(show(HOSTILE_LINES)) or (show is escaped and is_harmless(show(HOSTILE)))
    assert show is escaped or "\n" not in show(HOSTILE_LINES)
    assert len(one_line("x y" * 10**6)) <= 2000


def test_a_console_shows_it_harmlessly_in_lines_and_tables():
    from rich.table import Table

    written = io.StringIO()
    console = PrintableConsole(file=written, force_terminal=True, width=400, color_system=None)
    table = Table("name")
    table.add_row(HOSTILE)
    console.print(HOSTILE, markup=False)
    console.print(table, markup=False)
    assert is_harmless(written.getvalue().replace("\u0301", "")) and written.getvalue().count(UNKNOWN) > 8


PROGRAM = """
import sys, typer
from hub_tools.one_line_errors import run_command_line
app = typer.Typer()
@app.command()
def show():
    text = sys.argv[0] and chr(27) + "[2J" + chr(8238) + "x" + chr(0x9b)
    typer.echo(text); print(text); sys.stderr.write(text + "\\n")
    import logging; logging.getLogger("x").warning(text)
    raise ValueError(text + "end")
run_command_line(app, "p")
"""


def test_nothing_that_a_command_prints_reaches_a_terminal_raw():
    ours, theirs = pty.openpty()
    done = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while more := os.read(ours, 4096):
            said += more
    except OSError:  # how a terminal ends
        pass
    assert done.wait() == 1
    text = said.decode()
    assert "x" in text and "end" in text and "\x1b" not in text and "\u202e" not in text and "\x9b" not in text


@pytest.mark.parametrize(
    "text", ["plain", "\x7f", "\u202e\u200b", "a" + "\u0301" * 9, "\ud83d", "\U000e0041", "äöü 🎨"]
)
def test_json_says_the_same_after_it_was_made_printable(text):
    line = printable_json([text])
    assert printable(line) == line and json.loads(line) == [text]
