"""Contents on disk, each under its sha256. An object exists completely or not at all: temporary name, fsync, rename."""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..protocol.hub_error import disk_full

DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """A content in the store: its sha256 in hex and its size in bytes."""

    sha256: str
    size: int


class ObjectStore:
    """The folder of contents below a Hub's root, and the folder where they arrive."""

    def __init__(self, root: Path) -> None:
        self.objects = root / "objects"
        self.incoming = root / "incoming"

    def prepare(self) -> None:
        """Create the folders where they are missing."""
        self.objects.mkdir(parents=True, exist_ok=True)
        self.incoming.mkdir(parents=True, exist_ok=True)

    def path_of(self, sha256: str) -> Path:
        """Return the path of the content with this digest, whether or not it exists."""
        return self.objects / sha256[:2] / sha256[2:4] / sha256

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Say whether the content is there (with that size, if one is given)."""
        path = self.path_of(sha256)
        return path.is_file() and (size is None or path.stat().st_size == size)

    def incoming_path(self) -> Path:
        """Return a fresh temporary name on the same file system as the objects."""
        return self.incoming / secrets.token_hex(16)

    @contextlib.contextmanager
    def incoming_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Yield a fresh temporary file, removed afterwards unless it was adopted. Raises the 507 for a full disk."""
        path = self.incoming_path()
        try:
            with disk_full_as_answer(), path.open("xb") as file:
                yield path, file
        finally:
            path.unlink(missing_ok=True)

    def add_bytes(self, content: bytes) -> StoredObject:
        """Store `content` durably and return its digest and size. Storing it twice does no harm."""
        stored = StoredObject(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        if not self.has(stored.sha256, stored.size):
            with self.incoming_file() as (path, file):
                file.write(content)
                self.adopt(path, file, stored.sha256)
        return stored

    def adopt(self, path: Path, file: BinaryIO, sha256: str) -> None:
        """Make the complete temporary file at `path` the content `sha256`, durably. The caller checked the digest."""
        file.flush()
        os.fsync(file.fileno())
        target = self.path_of(sha256)
        self._make_folders(target.parent)
        path.replace(target)
        sync_folder(target.parent)

    def clear_incoming(self) -> None:
        """Remove what interrupted uploads left. Only for the one process that serves this root."""
        for path in self.incoming.iterdir():
            path.unlink(missing_ok=True)

    def all_digests(self) -> Iterator[str]:
        """Yield the digest of every content in the store."""
        for path in self.objects.glob("??/??/*"):
            yield path.name

    def _make_folders(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
            sync_folder(self.objects)


@contextlib.contextmanager
def disk_full_as_answer() -> Iterator[None]:
    """Turn the operating system's 'disk full' into the Hub's answer."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise disk_full(os.strerror(error.errno)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of_file(path: Path) -> str:
    """Return the sha256 of the file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
