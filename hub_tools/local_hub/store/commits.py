"""Turning a commit request into a commit: contents first, each durable, then one transaction that shows them all."""

import base64
import binascii
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO

from ..protocol.client_paths import check_path_in_repository
from ..protocol.hub_error import HubError, bad_request, entry_not_found, revision_not_found
from .accounts import Caller
from .history import add_commit, find_reference, set_reference
from .lfs_files import holds_content
from .object_store import ObjectStore
from .repositories import Repository
from .trees import git_blob_oid, lfs_pointer

SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_LINE_BYTES = 64 << 20
GITATTRIBUTES = "".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n"
    for pattern in ("*.safetensors", "*.parquet", "*.bin", "*.png", "*.jpg", "*.webp", "*.npz", "*.tar", "*.zip")
).encode()


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file of a commit: a content that is in the store already, at a path."""

    path: str
    sha256: str
    size: int
    is_lfs: bool
    oid: str


@dataclass(kw_only=True)
class CommitRequest:
    """A commit as the client asked for it, its small files already stored."""

    title: str = ""
    description: str = ""
    parent_oid: str | None = None
    files: list[FileChange] = field(default_factory=list)
    deleted_files: list[str] = field(default_factory=list)
    deleted_folders: list[str] = field(default_factory=list)


def read_commit_request(lines: Iterable[bytes], objects: ObjectStore) -> CommitRequest:
    """Read the newline-delimited JSON of a commit and store the contents in it. Raises a 400 for what is invalid."""
    request = CommitRequest()
    for line in filter(bytes.strip, lines):
        key, value = _parse_line(line)
        if key == "header":
            request.title = str(value.get("summary") or "")
            request.description = str(value.get("description") or "")
            request.parent_oid = value.get("parentCommit")
        elif key == "file":
            request.files.append(store_small_file(objects, value.get("path"), _content_of(value)))
        elif key == "lfsFile":
            request.files.append(_lfs_change(objects, value))
        elif key == "deletedFile":
            request.deleted_files.append(check_path_in_repository(value.get("path")))
        elif key == "deletedFolder":
            request.deleted_folders.append(check_path_in_repository(str(value.get("path")).rstrip("/")))
        else:
            raise bad_request(f"Unknown commit operation {key!r}")
    if not request.title:
        raise bad_request("A commit needs a summary: pass commit_message")
    return request


def store_small_file(objects: ObjectStore, path: object, content: bytes) -> FileChange:
    """Store a content that came inside the request, and return the change that puts it at `path`."""
    checked = check_path_in_repository(path)
    stored = objects.add_bytes(content)
    return FileChange(path=checked, sha256=stored.sha256, size=stored.size, is_lfs=False, oid=git_blob_oid(content))


def apply_commit(
    connection: sqlite3.Connection, caller: Caller, repository: Repository, branch: str, request: CommitRequest
) -> sqlite3.Row:
    """Put the requested commit on a branch and return its row; a request that changes nothing returns the head.

    Raises a 404 for an unknown branch and a 412 when the branch has moved on from the parent that the client named.
    """
    head = find_reference(connection, repository, "branch", branch)
    if head is None:
        raise revision_not_found(branch)
    _check_parent(head, request.parent_oid)
    _check_contents(connection, caller, repository, request)
    connection.execute("SAVEPOINT before_commit")
    commit = add_commit(
        connection,
        repository,
        parent=head,
        author=str(caller.user),
        title=request.title,
        description=request.description,
    )
    if not _change_entries(connection, commit, request):
        connection.execute("ROLLBACK TO before_commit")
        return head
    set_reference(connection, repository, "branch", branch.removeprefix("refs/heads/"), commit)
    # A content that was permanently deleted and is committed again counts as present again.
    connection.executemany(
        "DELETE FROM deleted_contents WHERE repository=? AND sha256=?",
        [(repository.id, change.sha256) for change in request.files],
    )
    return commit


def first_commit(
    connection: sqlite3.Connection, repository: Repository, author: str, files: list[FileChange]
) -> sqlite3.Row:
    """Start a repository's history on main."""
    commit = add_commit(connection, repository, parent=None, author=author, title="initial commit")
    _change_entries(connection, commit, CommitRequest(title="initial commit", files=files))
    set_reference(connection, repository, "branch", "main", commit)
    return commit


def _check_parent(head: sqlite3.Row, parent_oid: object) -> None:
    if parent_oid is None:
        return
    if not isinstance(parent_oid, str) or len(parent_oid) < 7 or not head["oid"].startswith(parent_oid):
        message = (
            f"The branch has moved: its head is {head['oid']}, the commit was made for {parent_oid}. Read it again"
        )
        raise HubError(HTTPStatus.PRECONDITION_FAILED, message)


def _check_contents(
    connection: sqlite3.Connection, caller: Caller, repository: Repository, request: CommitRequest
) -> None:
    for change in request.files:
        # Knowing a digest must not be enough to read someone's private content.
        if change.is_lfs and not holds_content(connection, caller, repository, change.sha256):
            raise bad_request(
                f"The content of {change.path} (sha256 {change.sha256}) was not uploaded to this repository"
            )


def _change_entries(connection: sqlite3.Connection, commit: sqlite3.Row, request: CommitRequest) -> int:
    changed = 0
    for path in request.deleted_files:
        deleted = connection.execute("DELETE FROM entries WHERE commit_id=? AND path=?", (commit["id"], path)).rowcount
        if not deleted:
            raise entry_not_found(path)
        changed += deleted
    for folder in request.deleted_folders:
        query = "DELETE FROM entries WHERE commit_id=? AND path >= ? AND path < ?"
        deleted = connection.execute(query, (commit["id"], f"{folder}/", f"{folder}0")).rowcount
        if not deleted:
            raise entry_not_found(folder)
        changed += deleted
    return changed + sum(_put_file(connection, commit, change) for change in request.files)


def _put_file(connection: sqlite3.Connection, commit: sqlite3.Row, change: FileChange) -> int:
    _check_no_clash(connection, commit, change.path)
    row = (commit["id"], change.path, change.sha256, change.size, change.oid, change.is_lfs, commit["id"])
    return connection.execute(
        """INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
           sha256=excluded.sha256, size=excluded.size, oid=excluded.oid, is_lfs=excluded.is_lfs,
           changed_in=excluded.changed_in
           WHERE entries.oid <> excluded.oid""",
        row,
    ).rowcount


def _check_no_clash(connection: sqlite3.Connection, commit: sqlite3.Row, path: str) -> None:
    parts = path.split("/")
    for parent in ("/".join(parts[:length]) for length in range(1, len(parts))):
        query = "SELECT 1 FROM entries WHERE commit_id=? AND path=?"
        if connection.execute(query, (commit["id"], parent)).fetchone():
            raise bad_request(
                f"Cannot add {path}: {parent} is a file. Delete it in the same commit or choose another path"
            )
    query = "SELECT 1 FROM entries WHERE commit_id=? AND path >= ? AND path < ?"
    if connection.execute(query, (commit["id"], f"{path}/", f"{path}0")).fetchone():
        raise bad_request(f"Cannot add {path}: it is a folder. Delete it in the same commit or choose another path")


def _parse_line(line: bytes) -> tuple[str, dict]:
    try:
        item = json.loads(line)
        key, value = item["key"], item["value"]
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request("A commit is newline-delimited JSON of {key, value} objects") from error
    if not isinstance(value, dict):
        raise bad_request(f"The value of commit operation {key!r} is not an object")
    return key, value


def _content_of(value: dict) -> bytes:
    content = value.get("content")
    try:
        if value.get("encoding", "utf-8") != "base64":
            return str(content).encode()
        return base64.b64decode(str(content), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise bad_request(f"The content of {value.get('path')!r} is not valid base64") from error


def _lfs_change(objects: ObjectStore, value: dict) -> FileChange:
    path, sha256 = check_path_in_repository(value.get("path")), value.get("oid")
    if not isinstance(sha256, str) or not SHA256_PATTERN.fullmatch(sha256):
        raise bad_request(f"The oid of {path} is not a sha256 digest")
    if not objects.has(sha256):
        raise bad_request(f"The content of {path} (sha256 {sha256}) was not uploaded to this repository")
    size = objects.path_of(sha256).stat().st_size
    if value.get("size") not in (None, size):
        raise bad_request(f"The content of {path} has {size} bytes, the commit says {value['size']}")
    oid = git_blob_oid(lfs_pointer(sha256, size))
    return FileChange(path=path, sha256=sha256, size=size, is_lfs=True, oid=oid)


def commit_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a request body, refusing one that would not fit in memory."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise bad_request(
                f"A commit operation is longer than {MAX_LINE_BYTES} bytes: upload large files through LFS"
            )
        yield line
