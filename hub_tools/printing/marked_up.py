"""Foreign text inside HTML and Markdown, shown literally; no other module writes such text into either."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from .printable import printable

BEYOND_HTML = str.maketrans({sign: f"&#{ord(sign)};" for sign in "{}$`\\"})
"""Gradio inserts HTML through templates, in which these characters are special."""

_MARKS = re.compile(r"([\\`*_\[\]|!#~$])")
_ADDRESSES = re.compile(r"(?i)(?=://)|(?<=\bwww)(?=\.)|(?=@)")
"""Where an invisible mark keeps a renderer from making a link of what stands there; escapes do not."""

_STARTS_A_BLOCK = re.compile(r"^(?:\d+(?=[.)](?:\s|$))|(?=[-+=>]))")


def escaped(text: object) -> str:
    """Return any text so that it is shown literally, inside an element or an attribute of HTML."""
    return html.escape(printable(str(text), keeps_lines=True), quote=True).translate(BEYOND_HTML)


def plain(text: object) -> str:
    """Return any text on one line as Markdown that shows it, without links, pictures, formulas, blocks or HTML."""
    line = " ".join(printable(str(text)).split()).replace("&", "&amp;").replace("<", "&lt;")
    return _ADDRESSES.sub("&#8203;", _STARTS_A_BLOCK.sub(r"\g<0>\\", _MARKS.sub(r"\\\1", line)))


def code(text: object) -> str:
    """Return any text as code in a line of Markdown, out of which nothing leads."""
    line = " ".join(printable(str(text)).split()).replace("`", "'")
    return f"`{line}`" if line else ""


def in_words(value: object) -> str:
    """Return a setting's value as text without Python's signs: `a, b`, `side: 64`, `yes`, `none`."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {in_words(one)}" for name, one in value.items()) or "none"
    if isinstance(value, (list, tuple, set)):
        return ", ".join(map(in_words, value)) or "none"
    return str(value)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; its cells are Markdown: pass what strangers wrote through `plain` or `code`."""
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    lines += [" | ".join(_in_a_cell(str(value)) for value in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _in_a_cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", printable(text).replace("<", "&lt;"))
