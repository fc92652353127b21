"""Tables in Markdown, for texts in which user names and captions come from strangers."""

import re
from collections.abc import Iterable, Sequence

_MARKS = re.compile(r"([\\`*_\[\]|!#])")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; its cells are Markdown: pass what strangers wrote through `plain`."""
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    lines += [" | ".join(_in_a_cell(str(value)) for value in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def plain(text: str) -> str:
    """Return text of a stranger on one line, without links, pictures or HTML."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;"))


def _in_a_cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("\n", " ").replace("<", "&lt;"))
