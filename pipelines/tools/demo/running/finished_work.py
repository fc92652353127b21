"""What is finished of a demo, in a file: an interrupted one goes on behind it."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hub_tools.atomic_files import file_digest, write_text_whole


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A piece of work that is done."""

    inputs: str
    """What it was made from, where that can change: a digest or a commit."""

    outputs: dict[str, str]
    """Digests of the files that it wrote, by their paths in the demo's folder."""

    result: Any
    """What it returned; as JSON."""


class FinishedWork:
    """The pieces of work that are done, and the seconds that stages took over all calls; kept in a file."""

    def __init__(self, folder: Path, file: Path) -> None:
        """`folder` is the demo's. A file that is missing or damaged is of nothing finished."""
        self._folder, self._file = folder, file
        self._pieces: dict[str, Finished] = {}
        self.seconds: dict[str, float] = {}
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            self._pieces = {name: Finished(**piece) for name, piece in values["pieces"].items()}
            self.seconds = {name: float(seconds) for name, seconds in values["seconds"].items()}
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            self._pieces, self.seconds = {}, {}

    def find(self, name: str, inputs: str = "") -> Finished | None:
        """Return a piece of work if it is done, was made from the same, and its files are as they were written."""
        piece = self._pieces.get(name)
        if piece is None or piece.inputs != inputs:
            return None
        files = [self._folder / path for path in piece.outputs]
        if not all(file.is_file() for file in files):
            return None
        return piece if list(map(file_digest, files)) == list(piece.outputs.values()) else None

    def was_done(self, name: str) -> bool:
        """Tell whether it was done once, whatever became of its files."""
        return name in self._pieces

    def add(self, name: str, inputs: str, outputs: Sequence[Path], result: object) -> None:
        """Note that a piece of work is done; `outputs` are files, and folders with all that is in them."""
        files = [file for path in outputs for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        digests = {str(file.relative_to(self._folder)): file_digest(file) for file in files if file.is_file()}
        self._pieces[name] = Finished(inputs=inputs, outputs=digests, result=result)
        self.save()

    def save(self) -> None:
        """Write the file, unless somebody has removed the demo's folder."""
        if not self._folder.is_dir():
            return
        pieces = {name: asdict(piece) for name, piece in self._pieces.items()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_text_whole(self._file, json.dumps(dict(pieces=pieces, seconds=self.seconds), indent=1) + "\n")


def digest_of(folder: Path) -> str:
    """Return the digest of a folder's files: of their names and what is in them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
