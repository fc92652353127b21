"""Large contents of a repository, across all its commits: listing them, and deleting them permanently."""

import sqlite3
from collections.abc import Iterable

from .object_store import ObjectStore
from .repositories import Repository


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
