"""What a document of the project links to."""

import re
from pathlib import Path


def linked_files(document: Path) -> list[str]:
    """Return the files that a document links to, relative to it; comments and code have no links."""
    text = re.sub(r"<!--.*?-->|```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)
