"""Files that exist completely or not at all: written under a temporary name, then renamed; and a file's digest."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden name beside `path` to write to; the file replaces `path` when the block ends without an error.

    If the block fails, nothing is left behind and `path` stays as it was. Threads and processes that write the same
    file do not interfere: the last one wins. The temporary name ends in `.partial`. Nothing is flushed to the
    disk: after a power failure the file may be empty.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.partial")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_whole(path: Path, text: str) -> None:
    """Write a text as UTF-8."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
