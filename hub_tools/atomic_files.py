"""Files that are there whole or not at all: written under a temporary name, then renamed."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a hidden name beside `path` to write to; the file takes the place of `path` when the block ends well.

    If the block fails nothing is left behind, and what was at `path` stays. Threads and processes that write the same
    file do not disturb each other: the last one wins. The temporary name ends in `.partial`. Nothing is flushed to the
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
