"""Large files (git LFS): addresses to upload to, who may refer to contents, and deleting them permanently."""

import hashlib
import hmac
import json
import math
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from ..protocol.hub_error import forbidden
from .accounts import Caller
from .object_store import ObjectStore
from .repositories import Repository, may_read, repository_of_row

GRANT_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class UploadGrant:
    """Permission to upload one content to one repository, carried by a signed address instead of a token."""

    repository: int
    sha256: str
    size: int
    part_bytes: int
    """Bytes per part of a multipart upload; 0 for an upload in one piece."""

    upload: str
    """Random name that keeps concurrent uploads of the same content apart."""

    expires: int
    """Unix time in seconds after which the address is invalid."""

    @property
    def num_parts(self) -> int:
        """How many parts a multipart upload has."""
        return math.ceil(self.size / self.part_bytes) if self.part_bytes else 0

    def signature(self, key: bytes) -> str:
        """Return the signature over every field."""
        return hmac.new(key, json.dumps(asdict(self), sort_keys=True).encode(), hashlib.sha256).hexdigest()

    def query(self, key: bytes) -> str:
        """Return the query string of an address that carries this grant."""
        fields = {**asdict(self), "signature": self.signature(key)}
        return "&".join(f"{name}={value}" for name, value in fields.items())


def new_grant(repository: Repository, sha256: str, size: int, *, part_bytes: int, now: float) -> UploadGrant:
    """Return a fresh grant for one content; contents above `part_bytes` come in parts."""
    return UploadGrant(
        repository=repository.id,
        sha256=sha256,
        size=size,
        part_bytes=part_bytes if size > part_bytes else 0,
        upload=secrets.token_hex(16),
        expires=int(now) + GRANT_SECONDS,
    )


def grant_of_query(query: Mapping[str, str], key: bytes, now: float) -> UploadGrant:
    """Return the grant that an address carries. Raises a 403 for a forged or expired one."""
    try:
        numbers = {name: int(query[name]) for name in ("repository", "size", "part_bytes", "expires")}
        grant = UploadGrant(sha256=query["sha256"], upload=query["upload"], **numbers)
        genuine = hmac.compare_digest(grant.signature(key), query["signature"])
    except (KeyError, ValueError, TypeError):
        genuine = False
    if not genuine:
        raise forbidden("This upload address is not signed by this Hub: ask for a new one")
    if now > grant.expires:
        raise forbidden("This upload address has expired: start the upload again")
    return grant


def record_upload(connection: sqlite3.Connection, repository: int, sha256: str, size: int) -> None:
    """Remember that a content was uploaded to a repository, so that its commits may refer to it."""
    # The repository may have been deleted while the upload ran.
    connection.execute(
        "INSERT OR IGNORE INTO uploads SELECT id, ?, ? FROM repositories WHERE id=?", (sha256, size, repository)
    )


def is_available(
    connection: sqlite3.Connection, objects: ObjectStore, caller: Caller, repository: Repository, sha256: str, size: int
) -> bool:
    """Say whether a content need not be uploaded again."""
    return objects.has(sha256, size) and holds_content(connection, caller, repository, sha256)


def holds_content(connection: sqlite3.Connection, caller: Caller, repository: Repository, sha256: str) -> bool:
    """Say whether this caller may refer to a content: it was uploaded here, or is in a repository they can read."""
    query = "SELECT 1 FROM uploads WHERE repository=? AND sha256=?"
    if connection.execute(query, (repository.id, sha256)).fetchone():
        return True
    query = """SELECT DISTINCT repositories.* FROM entries JOIN commits ON commits.id = entries.commit_id
               JOIN repositories ON repositories.id = commits.repository WHERE entries.sha256=?"""
    rows = connection.execute(query, (sha256,)).fetchall()
    return any(may_read(connection, caller, repository_of_row(row)) for row in rows)


def list_contents(connection: sqlite3.Connection, repository: Repository) -> list[sqlite3.Row]:
    """Return the rows (sha256, path, size, pushed_at) of all large contents that are kept, oldest first."""
    query = """SELECT entries.sha256 AS sha256, min(entries.path) AS path, min(entries.size) AS size,
                      min(commits.created_at) AS pushed_at
               FROM entries JOIN commits ON commits.id = entries.commit_id
               WHERE commits.repository=?1 AND entries.is_lfs
                 AND entries.sha256 NOT IN (SELECT sha256 FROM deleted_contents WHERE repository=?1)
               GROUP BY entries.sha256 ORDER BY min(commits.id), entries.path"""
    return connection.execute(query, (repository.id,)).fetchall()


def is_deleted(connection: sqlite3.Connection, repository: int, sha256: str) -> bool:
    """Tell whether a content was deleted from a repository, whose commits still name it."""
    query = "SELECT 1 FROM deleted_contents WHERE repository=? AND sha256=?"
    return connection.execute(query, (repository, sha256)).fetchone() is not None


def delete_contents(
    connection: sqlite3.Connection, objects: ObjectStore, repository: Repository, digests: Iterable[str]
) -> None:
    """Delete contents from a repository permanently; commits keep their names. Copies in other repositories stay."""
    known = {row["sha256"] for row in list_contents(connection, repository)}
    for sha256 in known.intersection(digests):
        connection.execute("INSERT OR IGNORE INTO deleted_contents VALUES (?, ?)", (repository.id, sha256))
        connection.execute("DELETE FROM uploads WHERE repository=? AND sha256=?", (repository.id, sha256))
        query = """SELECT 1 FROM entries JOIN commits ON commits.id = entries.commit_id WHERE sha256=?1 AND NOT EXISTS
                   (SELECT 1 FROM deleted_contents WHERE repository = commits.repository AND sha256=?1)"""
        if connection.execute(query, (sha256,)).fetchone() is None:
            objects.path_of(sha256).unlink(missing_ok=True)
