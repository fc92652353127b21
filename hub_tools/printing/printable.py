"""Foreign text, from the Hub, a peer, a service or a file, as it may be shown: it moves, hides and forges nothing."""

import contextlib
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

UNKNOWN = "\ufffd"
"""Shown for what a terminal obeys, and for what has no shape: control characters, private use, halves of a pair."""

MOST_MARKS = 4
"""On one letter; written languages need no more, and towers of them cover the lines above."""

LONGEST_LINE = 2000

JOINERS = "\u200c\u200d"
"""Emoji, Persian and the scripts of India are spelled with them."""

SIGNS_OF_NUMBERS = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u08e2")
"""Arabic ones, which Unicode counts among the invisible marks although they are seen."""

LOOKS_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
INVISIBLE = re.compile("[\u034f\u17b4\u17b5\u180b-\u180f\U000e0000-\U000e0fff]")
SELECTORS = re.compile("[\ufe00-\ufe0f]")
WHAT_A_BAR_WRITES = re.compile(r"\r|(?:\x1b\[A)*")
"""How tqdm goes back to the start of its line, or up to another bar's: at the start of what it writes, and alone."""


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """Return the text without what would act on a terminal or a page, reorder it, hide in it or tower over its line.

    It stays readable in any script, as do emoji. With `keeps_lines` its line ends and tabs stay, else they are blanks.
    """
    if text.isascii() and text.isprintable():
        return text
    shown, last, marks = [], "", 0
    for place, character in enumerate(text):
        if character in "\n\t" and keeps_lines:
            kept = character
        elif character in JOINERS:
            kept = character if _is_spelled(last) and _is_spelled(text[place + 1 : place + 2]) else ""
        else:
            kept = _shown(character)
        if unicodedata.category(character) in ("Mn", "Me"):
            marks += 1
            if marks > MOST_MARKS or (SELECTORS.match(character) and SELECTORS.match(last)):
                kept = ""
        elif kept and kept not in JOINERS:
            marks = 0
        if kept:
            shown.append(kept)
            last = kept
    return "".join(shown)


def printable_json(values: object) -> str:
    """Return a value as JSON on one line that says the same after `printable`: what that would change is escaped."""
    text = json.dumps(values, ensure_ascii=False)
    if printable(text) != text:
        text = json.dumps(values).replace("\x7f", "\\u007f")
    return text


def one_line(text: object, most: int = LONGEST_LINE) -> str:
    """Return the text printable, on one line, of `most` characters at most."""
    words = " ".join(printable(str(text)[: 4 * most]).split())
    return words if len(words) <= most else words[: most - 4].rstrip() + " ..."


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if character in LOOKS_BLANK or character.isspace():
        return " "
    if INVISIBLE.match(character) or (category == "Cf" and character not in SIGNS_OF_NUMBERS):
        return ""
    return UNKNOWN if category in ("Cc", "Cn", "Co", "Cs") else character


def _is_spelled(character: str) -> bool:
    """Whether a joiner beside it can belong to a spelling."""
    return bool(character) and not character.isascii() and unicodedata.category(character)[0] in "LMS"


class PrintableOutput:
    """A standard stream that shows printable text only; rich, whose colours are sequences, writes past it.

    What is written at once is one line, unless `keeps_lines`: a line end inside of it may be a stranger's.
    """

    def __init__(self, stream: TextIO, *, keeps_lines: bool = False) -> None:
        self._keeps_lines = keeps_lines
        self.rich_proxied_file = stream
        """By this name rich looks for the stream behind another one; see `consoles.py` for what it shows."""

    def write(self, text: str) -> int:
        """Write the text, and what moves a progress bar of the Hub's client on a terminal."""
        moves = WHAT_A_BAR_WRITES.match(text)
        start = moves.end() if moves and self.isatty() and (text[0:1] == "\r" or moves.end() == len(text)) else 0
        line = text[start:].rstrip("\n")
        ends = text[start + len(line) :]
        self.rich_proxied_file.write(text[:start] + printable(line, keeps_lines=self._keeps_lines) + ends)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def printable_output(*, keeps_lines: bool = False) -> Iterator[None]:
    """Let nothing but printable text reach the standard outputs, each write as one line unless `keeps_lines`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (PrintableOutput(stream, keeps_lines=keeps_lines) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def open_closed_streams() -> None:
    """Let standard streams that are closed (`2>&-`, cron, daemons) lead nowhere, also those of children.

    Else the next file that is opened gets their number, and what a library prints is written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
