"""What a visitor drew in this session, to come back to and to take along."""

import hashlib
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hub_tools.atomic_files import written_whole
from pipelines.tools.pages.drawing.drawing_desk import Shown
from pipelines.tools.pages.drawing.drawing_request import DrawingRequest

MOST_KEPT = 12
"""Drawings of a session; of each the page holds the names of its files and the codes of its pictures."""
LONGEST_NAME = 40
ABOUT_FILE = "about.txt"


@dataclass(frozen=True, kw_only=True)
class KeptDrawing:
    """A finished drawing without its pictures, which are files."""

    shown: Shown
    """What was said about it."""
    files: Sequence[tuple[str, str]]
    """Each picture's file and caption, best first."""

    @property
    def request(self) -> DrawingRequest:
        """What was asked for."""
        assert self.shown.request is not None, "it is finished"
        return self.shown.request

    @property
    def is_there(self) -> bool:
        """Whether the server still has the files."""
        return all(Path(file).exists() for file, _ in self.files)


def with_newest(kept: Sequence[KeptDrawing], newest: KeptDrawing) -> tuple[KeptDrawing, ...]:
    """Return the drawings of a session, newest first: those whose files are still there, at most `MOST_KEPT`."""
    return (newest, *(drawing for drawing in kept if drawing.is_there))[:MOST_KEPT]


def zipped(drawing: KeptDrawing, folder: Path) -> Path:
    """Write the pictures, named by their prompt, and what was said about them; return the file."""
    request = drawing.request
    name = re.sub(r"\W+", "-", request.prompt.strip().lower())[:LONGEST_NAME].strip("-") or "drawing"
    content = "\n".join([drawing.shown.message, *(file for file, _ in drawing.files)])
    path = folder / hashlib.sha256(content.encode()).hexdigest() / f"{name}-seed-{request.seed}.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for number, (file, _) in enumerate(drawing.files, start=1):
            archive.write(file, f"{name}-{number}{Path(file).suffix}")
        archive.writestr(ABOUT_FILE, f"{request.prompt}\n{drawing.shown.message}\n")
    return path
