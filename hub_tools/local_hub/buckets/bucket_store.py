"""Buckets and the files in them: a path has its newest content, and nothing before."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..protocol.client_paths import check_name, check_path_in_repository
from ..protocol.hub_error import HTTPStatus, HubError, not_offered, repository_not_found
from ..store.accounts import Caller, check_can_change, check_can_create, record_creator
from ..store.database import timestamp
from .xet_contents import uploaded_size


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket as the database has it."""

    id: int
    namespace: str
    name: str
    private: bool
    created_at: str

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def create_bucket(connection: sqlite3.Connection, caller: Caller, full_name: str, *, private: bool) -> Bucket:
    """Create an empty bucket. Raises a 409 when the name is taken."""
    namespace, _, name = full_name.partition("/")
    check_name(name, "bucket")
    check_can_create(connection, caller, namespace, action=f"create bucket {full_name}")
    if _find(connection, full_name):
        raise HubError(HTTPStatus.CONFLICT, f"You already created this bucket: {full_name}")
    connection.execute(
        "INSERT INTO buckets (namespace, name, private, created_at) VALUES (?, ?, ?, ?)",
        (namespace, name, private, timestamp()),
    )
    bucket = _find(connection, full_name)
    assert bucket is not None
    record_creator(connection, caller, "bucket", bucket.id)
    return bucket


def readable_bucket(connection: sqlite3.Connection, caller: Caller, full_name: str) -> Bucket:
    """Return the bucket if the caller may read it; a hidden one looks exactly like a missing one."""
    bucket = _find(connection, full_name)
    if bucket is None or (bucket.private and caller.role_in(connection, bucket.namespace) is None):
        raise repository_not_found(f"bucket {full_name}", anonymous=caller.user is None)
    return bucket


def writable_bucket(
    connection: sqlite3.Connection, caller: Caller, full_name: str, *, action: str, role: str = "write"
) -> Bucket:
    """Return the bucket if the caller may change it, else raise the 401, 403 or 404 that says why not."""
    bucket = readable_bucket(connection, caller, full_name)
    made, action = ("bucket", bucket.id), f"{action} bucket {full_name}"
    check_can_change(connection, caller, bucket.namespace, made, action=action, role=role)
    return bucket


def buckets_of(
    connection: sqlite3.Connection, caller: Caller, namespace: str, *, search: str, after: str, limit: int
) -> list[sqlite3.Row]:
    """Return up to `limit` rows of the namespace's buckets that the caller may read, with size and number of files.

    They are by name, beginning after the name `after`; `search` is a part of the name.
    """
    query = """SELECT buckets.*, coalesce(sum(size), 0) AS size, count(path) AS num_files
               FROM buckets LEFT JOIN bucket_files ON bucket = buckets.id
               WHERE namespace=? AND name > ? AND instr(lower(name), ?) AND (? OR NOT private)
               GROUP BY buckets.id ORDER BY name LIMIT ?"""
    is_member = caller.role_in(connection, namespace) is not None
    return connection.execute(query, (namespace, after, search.lower(), is_member, limit)).fetchall()


def delete_bucket(connection: sqlite3.Connection, bucket: Bucket) -> None:
    """Remove a bucket with its files."""
    connection.execute("DELETE FROM buckets WHERE id=?", (bucket.id,))


def files_below(connection: sqlite3.Connection, bucket: Bucket, prefix: str = "") -> list[sqlite3.Row]:
    """Return the rows of the files in a folder and below, by path."""
    query = "SELECT * FROM bucket_files WHERE bucket=?1 AND (?2 = '' OR substr(path, 1, length(?2)) = ?2) ORDER BY path"
    return connection.execute(query, (bucket.id, f"{prefix}/" if prefix else "")).fetchall()


def file_at(connection: sqlite3.Connection, bucket: Bucket, path: str) -> sqlite3.Row | None:
    """Return the row of a file, or None."""
    query = "SELECT * FROM bucket_files WHERE bucket=? AND path=?"
    return connection.execute(query, (bucket.id, path)).fetchone()


def apply_operations(
    connection: sqlite3.Connection, bucket: Bucket, operations: Sequence[Mapping[str, object]], at: datetime
) -> list[dict[str, str]]:
    """Carry out a batch in the present transaction, at this time; return what is refused of it, with the reason."""
    failed = []
    for operation in operations:
        try:
            _apply(connection, bucket, operation, at)
        except HubError as error:
            failed.append({"path": str(operation.get("path")), "error": error.message})
    return failed


def _apply(connection: sqlite3.Connection, bucket: Bucket, operation: Mapping[str, object], at: datetime) -> None:
    path = check_path_in_repository(operation.get("path"))
    match operation.get("type"):
        case "addFile":
            name, mtime = operation.get("xetHash"), operation.get("mtime")
            size = uploaded_size(connection, bucket.id, name)
            if size is None:
                raise HubError(HTTPStatus.NOT_FOUND, f"No content {name} was uploaded to this bucket")
            if not isinstance(mtime, int) or not 0 <= mtime < 1 << 53:
                raise HubError(HTTPStatus.BAD_REQUEST, f"Invalid mtime {mtime!r}: give milliseconds since 1970")
            row = (bucket.id, path, name, size, mtime, timestamp(at))
            connection.execute("INSERT OR REPLACE INTO bucket_files VALUES (?, ?, ?, ?, ?, ?)", row)
        case "deleteFile":
            query = "DELETE FROM bucket_files WHERE bucket=? AND path=?"
            if not connection.execute(query, (bucket.id, path)).rowcount:
                raise HubError(HTTPStatus.NOT_FOUND, "There is no such file")
        case other:
            raise not_offered(f"operation {other!r} on buckets: use addFile or deleteFile")


def _find(connection: sqlite3.Connection, full_name: str) -> Bucket | None:
    namespace, _, name = full_name.partition("/")
    row = connection.execute("SELECT * FROM buckets WHERE namespace=? AND name=?", (namespace, name)).fetchone()
    return Bucket(**{**dict(row), "private": bool(row["private"])}) if row else None
